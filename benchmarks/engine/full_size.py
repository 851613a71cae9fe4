"""The engine against PyTorch at full size: whole runs of published models on an emulated GPU.

    python benchmarks/engine/full_size.py [--out benchmarks/engine/full_size.json]

The emulated GPU has 2 TiB, so that models which no card holds run too. Needs a CUDA build of PyTorch and
gcc, no GPU. Each run is three steps from an empty allocator in a process of its own.
"""
from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpuledger.config import Cluster, Parallelism, Run, Training, load_gpu, load_model
from gpuledger.files import write_whole
from gpuledger.torch_runs.emulated_gpu import EmulatedDevice, emulated_environment

DEVICE = EmulatedDevice("NVIDIA H100 80GB HBM3, with 2 TiB", (9, 0), 132, 2 * 2**40)
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt2-xl", {"seq_len": 1024, "micro_batch_size": 8, "global_batch_size": 16,
                 "attention": "eager"}),
    ("gpt2-xl", {"seq_len": 1024, "micro_batch_size": 8, "attention": "efficient", "recompute": "full",
                 "gradient_clipping": True}),
    ("llama-2-7b", {"seq_len": 4096, "precision": "bf16"}),
    ("llama-3-8b", {"seq_len": 8192, "recompute": "full", "optimizer_implementation": "fused"}),
    ("llama-3-8b", {"seq_len": 8192, "loss": "fused_linear", "precision": "bf16-master"}),
    ("mistral-7b-v0.1", {"seq_len": 8192, "precision": "bf16", "recompute": "selective"}),
    ("gemma-2-9b", {"seq_len": 4096, "precision": "bf16", "attention": "eager", "recompute": "full"}),
    ("llama-3-70b", {"seq_len": 4096, "precision": "bf16", "recompute": "full",
                     "optimizer_implementation": "fused"}),
)
COMMON = {"micro_batch_size": 1, "precision": "bf16-mixed", "optimizer": "adamw", "attention": "flash",
          "recompute": "none", "loss": "cross_entropy"}
REPORTED = ("allocation.all.allocated", "requested_bytes.all.peak", "allocated_bytes.all.peak",
            "reserved_bytes.all.peak", "segment.all.peak")


def run_of(name: str, options: dict[str, Any]) -> Run:
    """A preset on one GPU."""
    settings = COMMON | options
    training = Training.model_validate({"global_batch_size": settings["micro_batch_size"]} | settings)
    cluster = Cluster(gpu=load_gpu("h100-80gb-sxm"), gpus=1, gpus_per_node=1)
    return Run(name=name, model=load_model(name), training=training, parallel=Parallelism(),
               cluster=cluster)


def compare(number: int) -> dict[str, Any]:
    """One run, in the child process that has the emulated GPU."""
    from gpuledger.torch_runs.self_check.whole import compare_whole_run

    name, options = RUNS[number]
    outcome = compare_whole_run(run_of(name, options))
    reserved = {key: pair for key, pair in outcome.reserved.items() if key in REPORTED}
    return {"model": name, "options": options, "stream_equal": outcome.stream is None,
            "first_difference": outcome.stream, "differing_statistics": outcome.statistics,
            "differing_reserved": reserved}


def main() -> None:
    """Runs all and writes one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("full_size.json"))
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.number is not None:
        print(json.dumps(compare(given.number)))
        return
    rows = []
    for number in range(len(RUNS)):
        command = [sys.executable, __file__, "--number", str(number)]
        done = subprocess.run(command, env=emulated_environment(DEVICE), stdout=subprocess.PIPE,
                              text=True, check=True)
        rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
        print(rows[-1], file=sys.stderr, flush=True)
    result = {"what": "whole runs, three steps from an empty allocator, engine against PyTorch; "
                      "statistics are (engine, PyTorch) where they differ",
              "how": "python benchmarks/engine/full_size.py, PyTorch on the emulated GPU",
              "device": DEVICE.name, "torch": version("torch"),
              "date": datetime.date.today().isoformat(), "runs": rows}
    write_whole(given.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
