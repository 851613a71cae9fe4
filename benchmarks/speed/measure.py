"""How fast an estimate is: a cold process beside the bare imports, and one call in a running process.

    python benchmarks/speed/measure.py [--rounds 15] [--json benchmarks/speed/speed.json]

Cold processes are timed in turns, so that a busy machine slows all of them alike; ratios are what counts.
"""
from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

from gpuledger.config import RunOptions, resolve_run
from gpuledger.estimate import estimate
from gpuledger.files import write_whole

COLD = {
    "import typer, pydantic": ["-c", "import typer, pydantic"],
    "import typer; from pydantic import BaseModel": ["-c", "import typer; from pydantic import BaseModel"],
    "gpuledger estimate gpt2": ["-m", "gpuledger.cli.main", "estimate", "gpt2", "--gpu", "h100", "--gpus", "1"],
    "gpuledger estimate llama-3-8b": ["-m", "gpuledger.cli.main", "estimate", "llama-3-8b", "--gpu", "h100",
                                      "--gpus", "8", "--zero", "3", "--recompute", "full"],
    "gpuledger --version": ["-m", "gpuledger.cli.main", "--version"],
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


def cold_seconds(rounds: int) -> dict[str, dict[str, float]]:
    """Wall-clock seconds of each command, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in COLD}
    for _ in range(rounds):
        for name, arguments in COLD.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            times[name].append(time.perf_counter() - started)
    return {name: {"min": min(all_), "median": statistics.median(all_)} for name, all_ in times.items()}


def call_milliseconds(rounds: int) -> dict[str, dict[str, float]]:
    """One estimate() with its exact peak, layers once, in a warm process."""
    results = {}
    for name, (model, settings) in CALLS.items():
        run, _ = resolve_run(model, RunOptions(gpu="h100", gpus=1, set=settings))
        times = []
        for _ in range(rounds):
            started = time.perf_counter()
            estimate(run)
            times.append(1e3 * (time.perf_counter() - started))
        results[name] = {"min": min(times), "median": statistics.median(times)}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cold, calls = cold_seconds(arguments.rounds), call_milliseconds(arguments.rounds)
    base = cold["import typer, pydantic"]["min"]
    print(f"cold process ({arguments.rounds} rounds, in turns)        min s   ratio")
    for name, seconds in cold.items():
        print(f"  {name:48s} {seconds['min']:6.3f}  {seconds['min'] / base:5.2f}")
    print("one estimate() in process                          min ms  median ms")
    for name, milliseconds in calls.items():
        print(f"  {name:48s} {milliseconds['min']:6.2f}  {milliseconds['median']:6.2f}")
    print("others: " + "; ".join(f"{name} {figures}" for name, figures in PEERS.items()))
    result: dict[str, Any] = {
        "python": platform.python_version(), "machine": platform.machine(), "rounds": arguments.rounds,
        "cold_seconds": cold, "call_milliseconds": calls, "others": PEERS}
    if arguments.json:
        write_whole(arguments.json, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
