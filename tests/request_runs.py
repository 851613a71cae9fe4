"""Runs and requests that several tests of gpuledger.planner.requests make, and a shell to run them in."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuledger.compute.step_time.of_run import step_time
from gpuledger.config import Run, load_run
from gpuledger.estimate import estimate
from gpuledger.planner.requests import RequestOptions, request_files

TRAINING = {"seq_len": 4096, "micro_batch_size": 1, "global_batch_size": 256, "precision": "bf16-mixed",
            "optimizer": "adamw", "attention": "flash", "recompute": "full", "loss": "cross_entropy"}
HOSTILE = "$(touch broken) `id` 'a' \"b\" \\ ; & | > # é\n$HOME"


def run_of(framework: str | None, gpus: int = 16, model: str = "llama-3-8b",
           training: dict[str, Any] | None = None, **parallel: Any) -> Run:
    """16 H100s in nodes of 8."""
    precision = {} if framework not in ("deepspeed", "megatron") else {"precision": "bf16-master"}
    return load_run({
        "name": "Llama 3 on H100", "model": model, "training": TRAINING | precision | (training or {}),
        "parallel": ({} if framework is None else {"framework": framework}) | parallel,
        "cluster": {"gpu": "h100-80gb-sxm", "gpus": gpus, "gpus_per_node": 8}})


def files_of(run: Run, **options: Any) -> dict[str, str]:
    """All files of a run."""
    return request_files(estimate(run), step_time(run),
                         RequestOptions(**{"tokens": 10**10} | options))


def calls(script: str, folder: Path, *programs: str, **variables: str) -> list[list[str]]:
    """The words with which a script calls these programs, after bash has read it."""
    log = folder / "calls.jsonl"
    for name in (*programs, "scontrol"):
        stand_in(folder / name, log, prints="node-0\nnode-1" if name == "scontrol" else "")
    (folder / "script.sh").write_text(script, encoding="utf-8")
    environment = {**os.environ, **variables, "PATH": f"{folder}:{os.environ['PATH']}",
                   "SLURM_SUBMIT_DIR": str(folder)}
    subprocess.run(["bash", "script.sh"], cwd=folder, env=environment, check=True, timeout=60)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line[0] in programs]


def stand_in(path: Path, log: Path, prints: str = "") -> None:
    """A program that notes its words and prints."""
    path.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\n"
        "words = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]\n"
        f"with open({str(log)!r}, 'a') as file:\n    file.write(json.dumps(words) + chr(10))\n"
        f"print({prints!r})\n", encoding="utf-8")
    path.chmod(0o755)
