"""The engine against PyTorch at length: 500 random configurations on each of four emulated GPUs.

    python benchmarks/engine/streams.py [--count 500] [--whole 50] [--out benchmarks/engine/streams.json]

Needs a CUDA build of PyTorch and gcc, no GPU. Each configuration is drawn from a seed (see
gpuledger/torch_runs/self_check/draw.py), so that a case can be run again alone.
"""
from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpuledger.files import write_whole
from gpuledger.torch_runs.emulated_gpu import EmulatedDevice, emulated_environment

DEVICES = (
    EmulatedDevice("NVIDIA A100-SXM4-80GB", (8, 0), 108, 85_095_612_416),
    EmulatedDevice("NVIDIA L40S", (8, 9), 142, 47_697_362_944),
    EmulatedDevice("NVIDIA H100 80GB HBM3", (9, 0), 132, 85_028_765_696),
    EmulatedDevice("NVIDIA B200", (10, 0), 148, 191_502_483_456),
)
CHUNK = 100                                   # configurations per process
FIRST_SEED = 10_000


def self_check(device: EmulatedDevice, seed: int, count: int, *options: str) -> dict[str, Any]:
    """The summary that one process prints; mismatches go to stderr."""
    command = [sys.executable, "-m", "gpuledger.torch_runs.self_check", str(seed), str(count), *options]
    done = subprocess.run(command, env=emulated_environment(device), stdout=subprocess.PIPE, text=True)
    summary: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(device.name, summary, file=sys.stderr, flush=True)
    return summary


def campaign(device: EmulatedDevice, number: int, streams: int, whole: int) -> dict[str, Any]:
    """Steady steps in chunks, then whole runs, on one device."""
    seeds = range(FIRST_SEED + 1000 * number, FIRST_SEED + 1000 * number + -(-streams // CHUNK))
    steady = [self_check(device, seed, min(CHUNK, streams - i * CHUNK)) for i, seed in enumerate(seeds)]
    runs = self_check(device, FIRST_SEED + 1000 * number + 999, whole, "--whole")
    return {
        "device": device.name, "capability": ".".join(map(str, device.capability)),
        "num_sms": device.num_sms, "seeds": [seeds[0], seeds[-1]],
        "streams": sum(part["cases"] for part in steady),
        "streams_equal": sum(part["equal"] for part in steady),
        "mismatches": [[part["seed"], case] for part in steady for case in part["mismatches"]],
        "whole_runs": runs["cases"], "whole_runs_equal": runs["equal"],
        "whole_run_mismatches": runs["mismatches"],
    }


def main() -> None:
    """Runs all devices and writes one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--whole", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("streams.json"))
    given = parser.parse_args()
    devices = [campaign(device, i, given.count, given.whole) for i, device in enumerate(DEVICES)]
    result = {
        "what": "streams of allocations and frees of a steady step (third step), engine against PyTorch; "
                "order inside a run of consecutive frees aside. Whole runs: three steps from an empty "
                "allocator, stream and every allocated, active and requested statistic equal, reserved "
                "peak within one segment (20 MiB).",
        "how": "python benchmarks/engine/streams.py, PyTorch on the emulated GPU",
        "torch": version("torch"), "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "streams": sum(d["streams"] for d in devices),
        "streams_equal": sum(d["streams_equal"] for d in devices),
        "whole_runs": sum(d["whole_runs"] for d in devices),
        "whole_runs_equal": sum(d["whole_runs_equal"] for d in devices),
        "devices": devices,
    }
    write_whole(given.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
