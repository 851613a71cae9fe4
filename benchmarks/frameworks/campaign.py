"""The frameworks' accounts against the frameworks, as one rank of N, on random configurations.

    python benchmarks/frameworks/campaign.py [--out benchmarks/frameworks/campaign.json] [--only fsdp2-tp]

DDP with its options; DataParallel's first GPU of up to 8; ZeroRedundancyOptimizer; FSDP2 with reshard on, off
and to fewer ranks, mixed precision, HSDP, prefetching, accumulation and CPU offload; the same over DTensor's tensor
parallelism on 2, 3, 4 or 8 ranks, with and without sequence parallelism (fsdp2-tp); FSDP1 with every strategy;
DeepSpeed's stages 0 to 3 with offload; on small GPT-2 and LLaMA shapes with odd sizes, on 1, 2, 8, 64 and 512
ranks. Compared are the ordered stream of a steady step and, for the rank that `estimate` looks at, the peak of
requested bytes. Needs a CUDA build of PyTorch and gcc, no GPU; DeepSpeed's rows need the package deepspeed.
"""
from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpuledger.files import write_whole
from gpuledger.torch_runs.emulated_gpu import EmulatedDevice, emulated_environment

FIRST_SEED = 20_000
DEVICES = (EmulatedDevice("NVIDIA H100 80GB HBM3", (9, 0), 132, 85_017_493_504),
           EmulatedDevice("NVIDIA A100-SXM4-80GB", (8, 0), 108, 84_986_691_584))
COUNTS = {"ddp": 30, "dataparallel": 15, "zero-redundancy-optimizer": 15, "fsdp2": 45, "fsdp2-tp": 40, "fsdp1": 40,
          "deepspeed": 50}


def compare(framework: str, device: EmulatedDevice, first_seed: int) -> dict[str, Any]:
    """The summary of the self-check, which exits with 1 where there was a mismatch."""
    command = [sys.executable, "-m", "gpuledger.torch_runs.self_check.frameworks", framework,
               str(first_seed), str(COUNTS[framework])]
    environment = emulated_environment(device, devices=8)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    summary: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {"device": device.name} | summary


def result_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The file's content."""
    return {
        "what": "streams of allocations and frees of a steady step as one rank of N, and the peak of requested bytes "
                "where the rank is the one that is estimated",
        "how": "python benchmarks/frameworks/campaign.py, PyTorch on the emulated GPU",
        "torch": version("torch").partition("+")[0],
        "deepspeed": version("deepspeed") if find_spec("deepspeed") else None,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cases": sum(row["cases"] for row in rows),
        "equal_streams": sum(row["equal_streams"] for row in rows),
        "peaks": sum(row["peaks"] for row in rows),
        "equal_peaks": sum(row["equal_peaks"] for row in rows),
        "worst_peak_error_bytes": max(row["worst_peak_error_bytes"] for row in rows), "rows": rows}


def main() -> None:
    """Runs all, or one framework; the file is written anew after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("campaign.json"))
    parser.add_argument("--only", choices=COUNTS, help="the rows of the others stay as they are")
    given = parser.parse_args()
    before = json.loads(given.out.read_text(encoding="utf-8"))["rows"] if given.only else []
    rows: list[dict[str, Any]] = []
    for number, device in enumerate(DEVICES):
        for framework in COUNTS:
            if given.only not in (None, framework):
                rows += [r for r in before if (r["device"], r["framework"]) == (device.name, framework)]
                continue
            if framework == "deepspeed" and find_spec("deepspeed") is None:
                continue
            rows.append(compare(framework, device, FIRST_SEED + 1000 * number))
            print(rows[-1], file=sys.stderr, flush=True)
            if given.only is None:
                write_whole(given.out, json.dumps(result_of(rows), indent=1) + "\n")
    write_whole(given.out, json.dumps(result_of(rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
