"""The report on an emulated program, as text. ``ProgramResult.report`` is the same as data."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .emulated_gpu.growth import FEWEST_STEPS

GIB = 2**30
SHOWN_LINES = 6

NOT_REAL = (
    "values are not computed: device memory reads back as zeros, so sizes and branches that depend "
    "on data may differ",
    "time is not real; work is done at once, so memory that a real GPU frees late (record_stream) "
    "is freed at once here: reserved is a lower bound where streams overlap",
    "cuDNN's own workspace is not known without a GPU and counts as 0",
)

# Published measurements; NCCL's memory depends on topology, channels and protocols.
NCCL_PUBLISHED = (
    "published: 544 MB for a communicator of 2 GPUs and 688 MB for larger groups on 4 A100 with "
    "NVLink (NVIDIA/nccl#964); about 1.6 GB for one communicator and 6 GB for three or more on "
    "another system (NVIDIA/nccl#864)"
)


def report_text(report: dict[str, Any]) -> str:
    """The whole report, as lines for a terminal."""
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield from _heading(report)
    yield ""
    yield from _device_table(report["devices"])
    for oom in report["ooms"]:
        yield from _oom_lines(oom)
    for device in report["devices"]:
        yield from _peak_lines(device)
        yield from _growth_lines(device, report["steps"])
    yield ""
    yield from _outside_lines(report)
    yield "not real:"
    yield from (f"  {text}" for text in NOT_REAL)
    yield "changed in PyTorch for this run:"
    yield from (f"  {patch['name']}: {patch['what']} {patch['why']}" for patch in report["patches"])


def _heading(report: dict[str, Any]) -> Iterator[str]:
    gpu = report["gpu"]
    major, minor = gpu["capability"]
    yield (f"emulated {gpu['devices']} x {gpu['name']} (capability {major}.{minor}, "
           f"{_gib(gpu['total_bytes'])}), torch {report['torch']}")
    if report["world_size"]:
        yield f"rank {report['rank']} of {report['world_size']}; the other ranks do not exist"
    if report["error"]:
        yield f"the program ended with {report['error'].splitlines()[0]}"


def _device_table(devices: list[dict[str, Any]]) -> Iterator[str]:
    from tabulate import tabulate

    if not devices:
        yield "the program allocated nothing on a GPU"
        return
    rows = [
        [f"cuda:{d['index']}", *(_gib(d[f"peak_{counter}_bytes"]) for counter in
                                 ("requested", "allocated", "active", "reserved")),
         _gib(d["total_bytes"]), d["num_alloc_retries"], d["num_ooms"]]
        for d in devices
    ]
    headers = ["peak", "requested", "allocated", "active", "reserved", "of", "retries", "OOMs"]
    yield from tabulate(rows, headers, disable_numparse=True,
                        colalign=["left", *["right"] * 7]).splitlines()


def _peak_lines(device: dict[str, Any]) -> Iterator[str]:
    peak = device["peak"]
    yield ""
    if peak is None:
        yield (f"cuda:{device['index']}: the run made more allocations than the history keeps; "
               "what was alive at the peak is not known")
        return
    yield f"cuda:{device['index']}, alive at the peak (step {peak['step']}, at {peak['line']}):"
    yield from _holding_lines(peak["holdings"])


def _growth_lines(device: dict[str, Any], steps: int) -> Iterator[str]:
    growth = device["growth"]
    yield ""
    if growth is None:
        found = "no growth from step to step" if steps >= FEWEST_STEPS else (
            f"growth from step to step is not judged below {FEWEST_STEPS} steps")
        yield f"cuda:{device['index']}: {found} ({steps} optimizer steps seen)"
        return
    yield (f"cuda:{device['index']}: LEAK, {growth['requested_bytes_per_step']:,} bytes requested "
           f"({growth['allocated_bytes_per_step']:,} allocated) more after each step, from step "
           f"{growth['first_step']} to {growth['last_step']}; what remains is allocated at")
    yield from _holding_lines(growth["lines"], per="per step ")


def _oom_lines(oom: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield (f"cuda:{oom['device']}: OUT OF MEMORY in step {oom['step']}, at {oom['line']}: wanted "
           f"{_gib(oom['wanted_bytes'])} with {_gib(oom['allocated_bytes'])} allocated, "
           f"{_gib(oom['reserved_bytes'])} reserved, {_gib(oom['device_free_bytes'])} free; "
           "the largest allocations were made at")
    yield from _holding_lines(oom["top_allocations"])


def _holding_lines(holdings: Iterable[dict[str, Any]], per: str = "") -> Iterator[str]:
    for holding in list(holdings)[:SHOWN_LINES]:
        blocks = holding["blocks"]
        yield (f"  {_size(holding['requested_bytes']):>12}  {per}in {blocks} "
               f"block{'s' if blocks != 1 else ''}  {holding['line']}")


def _outside_lines(report: dict[str, Any]) -> Iterator[str]:
    yield "outside PyTorch's allocator, in no figure above:"
    context = report["gpu"]["context_bytes"]
    yield (f"  CUDA context: {_gib(context)}, taken off what is free" if context else
           "  CUDA context: not known for this GPU, so what is free is an upper bound")
    ranks = report["nccl"]["communicators"]
    if ranks:
        sizes = ", ".join(str(n) if n else "a part" for n in sorted(ranks, reverse=True))
        yield f"  NCCL: {len(ranks)} communicator{'s' if len(ranks) > 1 else ''} (ranks: {sizes})"
        yield f"  {NCCL_PUBLISHED}"


def _gib(count: int) -> str:
    return f"{count / GIB:.3f} GiB"


def _size(count: int) -> str:
    return _gib(count) if count >= GIB // 1000 else f"{count:,} B"
