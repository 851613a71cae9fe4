"""The allocator model against PyTorch's compiled allocator, at length, on the emulated GPU.

    PYTHONPATH=src python benchmarks/allocator/fuzz.py --output benchmarks/allocator/fuzz.json

Needs a CUDA build of torch and gcc, no GPU. For each of the settings, 50 seeds of 2,000 random
operations: allocations of all magnitudes, frees, empty_cache, peak resets; odd seeds on three
streams with record_stream. A third of the seeds runs on a card of 79 GiB, a third on 4 GiB, a
third on 1 GiB, where memory runs out. Compared: all 123 statistics every 10 operations, every
block of every segment every 250, and every out-of-memory error with its figures.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from gpuledger.files import write_whole
from gpuledger.torch_runs.emulated_gpu import EmulatedDevice, build, emulated_environment

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "emulated" / "programs" / "allocator_pair.py"
CARD = EmulatedDevice("NVIDIA H100 80GB HBM3", (9, 0), 132, 85_028_765_696)
CAPACITIES = (CARD.total_bytes, 4 * 2**30, 2**30)
SETTINGS = (                # the eight of the test suite, then combinations of them
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "large_segment_size_mb:32",
    "expandable_segments:True,max_split_size_mb:64",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:1.0",
    "expandable_segments:True,garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
    "max_split_size_mb:64,max_non_split_rounding_mb:100,garbage_collection_threshold:0.3,"
    "per_process_memory_fraction:0.9",
)


def run(settings: str, capacity: int, seeds: range, operations: int) -> dict[str, object]:
    """The outcome of one child process."""
    environment = emulated_environment(replace(CARD, total_bytes=capacity))
    environment["PYTHONPATH"] = str(ROOT / "src")
    environment["PYTORCH_CUDA_ALLOC_CONF"] = settings
    command = [sys.executable, str(PROGRAM), "--operations", str(operations), "--seeds"]
    done = subprocess.run(
        [*command, *map(str, seeds)], env=environment, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def campaign(settings: str, seeds: int, operations: int) -> dict[str, object]:
    """All seeds of one setting, dealt over the capacities; sums over the child processes."""
    sums: Counter[str] = Counter()
    mismatches: list[str] = []
    for i, capacity in enumerate(CAPACITIES):
        outcome = run(settings, capacity, range(i, seeds, len(CAPACITIES)), operations)
        mismatches += [f"{capacity} B: {m}" for m in outcome.pop("mismatches")]
        sums.update(outcome)
    return {"settings": settings or "default", **sums, "mismatches": mismatches}


def torch_version() -> str:
    command = [sys.executable, "-c", "import torch; print(torch.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    build()
    start, rows = time.perf_counter(), []
    for settings in SETTINGS:
        rows.append(campaign(settings, arguments.seeds, arguments.operations))
        print(json.dumps(rows[-1]), flush=True)
    result = {
        "command": "python benchmarks/allocator/fuzz.py "
                   f"--seeds {arguments.seeds} --operations {arguments.operations}",
        "torch": torch_version(), "python": sys.version.split()[0],
        "capacities_bytes": CAPACITIES, "seconds": round(time.perf_counter() - start),
        "mismatches": sum(len(row["mismatches"]) for row in rows), "rows": rows,
    }
    if arguments.output:
        write_whole(arguments.output, json.dumps(result, indent=1) + "\n")
    print(f"{result['mismatches']} mismatches in {result['seconds']} s")


if __name__ == "__main__":
    main()
