"""Seconds of `gpuledger report` for five runs: forty-odd charts in three formats, and the page.

    python benchmarks/speed/report.py [--rounds 5]

Each round is a new process. Printed: wall and CPU seconds (user and system, workers included) of the fastest
round, and the load of the machine before and after. CPU seconds are what a report costs; wall seconds need
idle cores.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = ("gpt2-a100", "llama-3-8b-h100x8", "llama-2-7b-a100x8", "llama-3-70b-h100x64",
        "gpt3-175b-a100x1024")
COMMAND = "from gpuledger.cli.main import run; run()"


def seconds_of(folder: str) -> tuple[float, float]:
    """Wall and CPU seconds of one report."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", COMMAND, "report", *RUNS, "-o", folder], check=True,
                   stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds, load = parser.parse_args().rounds, os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        seconds_of(folder)                                   # compiles bytecode, warms the disk's cache
        measured = [seconds_of(folder) for _ in range(rounds)]
        files = sum(1 for _ in Path(folder).iterdir())
    wall, cpu = (min(column) for column in zip(*measured, strict=True))
    print(f"{len(RUNS)} runs, {files} files, {os.cpu_count()} cores, Python {platform.python_version()}: "
          f"{wall:.1f} s wall, {cpu:.1f} s CPU; load {load:.1f} to {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
