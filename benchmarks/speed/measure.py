"""How fast an estimate is: a cold process beside the bare imports, and one call in a warm one.

    python benchmarks/speed/measure.py [--rounds 15] [--json benchmarks/speed/speed.json]

Cold processes run in turns, so that a busy machine slows all of them alike, with compiled bytecode
in a folder of their own, as an installed package has it. What counts is the ratio of the minima;
CPU time (user and system) depends least on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pydantic
import typer

from gpuledger.config import RunOptions, resolve_run
from gpuledger.estimate import estimate
from gpuledger.files import write_whole

BASE = "import typer, pydantic"
SMALLEST_APP = """
import typer
app = typer.Typer()
@app.command()
def main(number: int = 1):
    print(number)
app([])
"""
ONE_GPU = ("--gpu", "h100", "--gpus", "1")
COMMAND = ("-m", "gpuledger.cli.main")
COLD = {
    BASE: ("-c", BASE),
    "import typer; from pydantic import BaseModel": (
        "-c",
        "import typer; from pydantic import BaseModel",
    ),
    "smallest typer app (one int option)": ("-c", SMALLEST_APP),
    "gpuledger --version": (*COMMAND, "--version"),
    "gpuledger estimate gpt2": (*COMMAND, "estimate", "gpt2", *ONE_GPU),
    "gpuledger estimate llama-3-8b": (
        *COMMAND,
        "estimate",
        "llama-3-8b",
        "--gpu",
        "h100",
        "--gpus",
        "8",
        "--zero",
        "3",
        "--recompute",
        "full",
    ),
}
CALLS = {
    "llama-2-7b, 32 layers, bf16": ("llama-2-7b", ("precision=bf16",)),
    "llama-3-8b, 32 layers, autocast": ("llama-3-8b", ()),
    "llama-3-8b, 32 layers, full recompute": ("llama-3-8b", ("recompute=full",)),
    "gpt2, 12 layers": ("gpt2", ()),
    "llama-3.1-405b, 126 layers": ("llama-3.1-405b", ()),
}
PEERS = {
    "llm-analysis": "0.42 ms a call (no peak), 3.0 s cold",
    "calculon": "2.4 ms a call (no peak), 0.49 s cold",
    "simumax": "72 to 106 ms a call, about 1.2 s cold",
}
"""Published or measured by others on other machines: for the order of magnitude only."""


Times = dict[str, dict[str, float]]


def cold_times(rounds: int) -> dict[str, Times]:
    """CPU and wall-clock seconds of each command, in turns; the first turn compiles, uncounted."""
    cpu: dict[str, list[float]] = {name: [] for name in COLD}
    wall: dict[str, list[float]] = {name: [] for name in COLD}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(rounds + 1):
            for name, arguments in COLD.items():
                cpu_before, started = cpu_of_children(), time.perf_counter()
                subprocess.run(
                    [sys.executable, *arguments], check=True, capture_output=True, env=environment
                )
                if number:
                    wall[name].append(time.perf_counter() - started)
                    cpu[name].append(cpu_of_children() - cpu_before)
    return {"cpu_seconds": summarized(cpu), "wall_seconds": summarized(wall)}


def cpu_of_children() -> float:
    """Seconds of user and system time of all processes that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def call_times(rounds: int) -> dict[str, Times]:
    """Milliseconds of one estimate() with its exact peak, layers once, in a warm process."""
    clocks: dict[str, Callable[[], float]] = {
        "cpu_milliseconds": time.process_time,
        "wall_milliseconds": time.perf_counter,
    }
    times: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in CALLS} for clock in clocks
    }
    runs = {
        name: resolve_run(model, RunOptions(gpu="h100", gpus=1, set=settings))[0]
        for name, (model, settings) in CALLS.items()
    }
    for _ in range(rounds):
        for name, run in runs.items():
            started = {clock: read() for clock, read in clocks.items()}
            estimate(run)
            for clock, read in clocks.items():
                times[clock][name].append(1e3 * (read() - started[clock]))
    return {clock: summarized(measured) for clock, measured in times.items()}


def summarized(times: dict[str, list[float]]) -> Times:
    """Minimum and median of each."""
    return {
        name: {"min": min(all_), "median": statistics.median(all_)} for name, all_ in times.items()
    }


def print_times(cold: dict[str, Times], calls: dict[str, Times]) -> None:
    """Two tables: seconds and ratios of the minima, then milliseconds."""
    print(f"{'cold process':46s}    CPU s  ratio   wall s  ratio")
    for name in COLD:
        cells = []
        for times in cold.values():
            seconds = times[name]["min"]
            cells.append(f"{seconds:8.3f}  {seconds / times[BASE]['min']:5.2f}")
        print(f"  {name:44s} {' '.join(cells)}")
    print(f"{'one estimate() in process':46s}   CPU ms, median   wall ms, median")
    for name in CALLS:
        cells = [
            f"{times[name]['min']:8.2f} {times[name]['median']:8.2f}" for times in calls.values()
        ]
        print(f"  {name:44s} {' '.join(cells)}")
    print("others: " + "; ".join(f"{name} {figures}" for name, figures in PEERS.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cold, calls = cold_times(arguments.rounds), call_times(arguments.rounds)
    print_times(cold, calls)
    result: dict[str, Any] = {
        "python": platform.python_version(),
        "pydantic": pydantic.VERSION,
        "typer": typer.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "rounds": arguments.rounds,
        "cold": cold,
        "calls": calls,
        "others": PEERS,
    }
    if arguments.json:
        write_whole(arguments.json, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
