"""Every fused kernel against PyTorch eager, torch.compile and, where installed, Liger.

    python benchmarks/gpu/kernels.py RESULTS             on a GPU machine: one command
    python benchmarks/gpu/kernels.py RESULTS --rehearse  the same script on the CPU with tiny sizes

Writes RESULTS/kernels.json, kernels.md and kernels.png. Forward and backward together, bfloat16,
the shapes of Llama 3 8B at 8,192 tokens; AdamW on float32. Each time is the median of `REPEATS`
runs with 20th and 80th percentile, the L2 cache overwritten before each. GB/s counts what must be
read and written at least, and the share is of a device copy measured in the same process.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from kernel_workloads import REHEARSAL, Sizes, Workload, add_liger, workloads
from tabulate import tabulate

from gpuledger.errors import GpuledgerError, InputError
from gpuledger.files import write_whole
from gpuledger.torch_runs.environment import device_facts, is_emulated, software_facts
from gpuledger.torch_runs.kernels import load

WARM_UP, REPEATS = 5, 30
COPY_BYTES, L2_BYTES = 2**30, 2**28


@dataclass(frozen=True)
class Measured:
    """One implementation of one workload."""

    workload: str
    implementation: str
    median_seconds: float
    p20_seconds: float
    p80_seconds: float
    traffic_bytes: int
    bytes_per_s: float
    share_of_copy: float
    peak_bytes: int


class Clock:
    """Seconds of one call: CUDA events on a GPU, the wall clock in a rehearsal."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.flush = torch.empty(L2_BYTES if self.on_gpu else 1, dtype=torch.uint8, device=device)

    def __call__(self, run: Callable[[], Any]) -> float:
        self.flush.zero_()
        if not self.on_gpu:
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3

    def times(self, run: Callable[[], Any]) -> list[float]:
        """REPEATS times, after a warm-up."""
        for _ in range(WARM_UP):
            run()
        return sorted(self(run) for _ in range(REPEATS))


def copy_bytes_per_s(clock: Clock, device: str) -> float:
    """Bytes read and written per second by a copy on the device."""
    count = COPY_BYTES if device == "cuda" else 2**20
    source = torch.empty(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / statistics.median(clock.times(lambda: target.copy_(source)))


def step_of(workload: Workload, implementation: Callable[..., Any]) -> Callable[[], Any]:
    """Forward and, where there is one, backward; incoming gradients are made once."""
    if not workload.differentiable:
        return lambda: implementation(*workload.inputs)
    incoming: list[torch.Tensor] = []

    def step() -> Any:
        outputs = implementation(*workload.inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if not incoming:
            incoming.extend(torch.ones_like(y) for y in outputs)
        return torch.autograd.grad(outputs, workload.inputs, incoming)

    return step


def peak_bytes(run: Callable[[], Any], device: str) -> int:
    """Bytes allocated at the peak of one call beyond those before it; 0 in a rehearsal."""
    if device != "cuda":
        return 0
    gc.collect()                            # compiled graphs may hold the last call's tensors
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(workload: Workload, clock: Clock, copy_rate: float, device: str) -> list[Measured]:
    """Every implementation of a workload; what fails is noted in workload.missing."""
    if workload.differentiable and device == "cuda":
        eager = workload.implementations["eager"]
        workload.implementations["torch.compile"] = torch.compile(eager)
        add_liger(workload)
    found = []
    for name, implementation in workload.implementations.items():
        run = step_of(workload, implementation)
        try:
            times = clock.times(run)
            peak = peak_bytes(run, device)
        except (RuntimeError, TypeError) as error:          # another library's, not ours
            if name == "gpuledger":
                raise
            workload.missing[name] = str(error).split("\n")[0]
            continue
        median = statistics.median(times)
        rate = workload.traffic_bytes / median
        found.append(Measured(workload.name, name, median, times[REPEATS // 5],
                              times[REPEATS * 4 // 5], workload.traffic_bytes, rate,
                              rate / copy_rate, peak))
    return found


def table(found: list[Measured]) -> str:
    """Markdown."""
    rows = [(m.workload, m.implementation, f"{m.median_seconds * 1e6:,.0f}",
             f"{m.p20_seconds * 1e6:,.0f} to {m.p80_seconds * 1e6:,.0f}",
             f"{m.bytes_per_s / 1e9:,.0f}" if m.traffic_bytes else "",
             f"{m.share_of_copy:.0%}" if m.traffic_bytes else "",
             f"{m.peak_bytes / 2**20:,.1f}") for m in found]
    heads = ("kernel", "implementation", "median us", "p20 to p80", "GB/s", "of copy", "peak MiB")
    return tabulate(rows, headers=heads, tablefmt="github", disable_numparse=True)


def draw(found: list[Measured], title: str, path: Path) -> None:
    """One bar per implementation: the share of the copy bandwidth."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    shown = [m for m in found if m.traffic_bytes]
    colours = {"gpuledger": "#332288", "eager": "#BBBBBB", "torch.compile": "#DDCC77",
               "liger": "#CC6677", "torch fused": "#88CCEE"}
    names = list(dict.fromkeys(m.workload for m in shown))
    places = [i + names.index(m.workload) for i, m in enumerate(shown)]     # a gap between kernels
    figure, axes = plt.subplots(figsize=(9, 0.25 * places[-1] + 1.4), layout="constrained")
    bars = axes.barh(places, [m.share_of_copy * 100 for m in shown],
                     color=[colours[m.implementation] for m in shown])
    axes.bar_label(bars, [f" {m.share_of_copy:.0%}, {m.median_seconds * 1e6:,.0f} us"
                          for m in shown], fontsize=8)
    axes.set_yticks(places, [f"{m.workload}, {m.implementation}" for m in shown])
    axes.axvline(85, color="black", linewidth=0.8, linestyle=":")
    axes.margins(x=0.15, y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel("least traffic / time, % of a measured device copy (dotted: 85 %)")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def heading(rehearse: bool) -> str:
    """Where the figures come from, and which of them mean something."""
    if rehearse:
        return "a rehearsal on the CPU: no figure here means anything"
    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"emulated {device}: bytes are real, times are not" if is_emulated() else device


def main(results: Path, rehearse: bool) -> None:
    if not rehearse and not torch.cuda.is_available():
        raise InputError("no GPU: torch.cuda.is_available() is False",
                         "run this on a GPU machine, or add --rehearse to try the script")
    device, sizes = ("cpu", REHEARSAL) if rehearse else ("cuda", Sizes())
    ops, clock = load(device), Clock(device)
    copy_rate = copy_bytes_per_s(clock, device)
    found: list[Measured] = []
    missing: dict[str, dict[str, str]] = {}
    for make in workloads(ops, sizes, device):
        workload = make()
        print(f"{workload.name} ...", file=sys.stderr, flush=True)
        found += measure(workload, clock, copy_rate, device)
        missing[workload.name] = workload.missing
    where = heading(rehearse)
    results.mkdir(parents=True, exist_ok=True)
    record = {"rehearsal": rehearse, "emulated": is_emulated(), "sizes": asdict(sizes),
              "software": software_facts(),
              "device": None if rehearse else device_facts(), "copy_bytes_per_s": copy_rate,
              "measured": [asdict(m) for m in found], "missing": missing}
    write_whole(results / "kernels.json", json.dumps(record, indent=2))
    text = f"{where}; copy {copy_rate / 1e9:,.0f} GB/s\n\n{table(found)}\n"
    write_whole(results / "kernels.md", text)
    draw(found, where, results / "kernels.png")
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measures the fused kernels")
    parser.add_argument("results", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    chosen = parser.parse_args()
    try:
        main(chosen.results, chosen.rehearse)
    except GpuledgerError as error:
        sys.exit(str(error))
