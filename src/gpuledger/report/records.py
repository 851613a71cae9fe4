"""From `estimate --json` to the plain records that charts take: no number is computed anew."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ..config.problems import validated
from ..config.run import Run
from ..estimate import device_of
from ..memory.allocator import SegmentRecord
from ..memory.frameworks import policy_of
from ..program.model import build
from ..program.program import Op, Part
from ..sweep import memories_of, why_not
from .charts.allocator_map import MapBlock, MapSegment
from .charts.breakdown import Bar
from .charts.conventions import Conventions
from .charts.feasibility import HeatCell, HeatMap
from .charts.levels import Line
from .charts.roofline import Operator, Roof
from .charts.time_breakdown import StepTime
from .charts.timeline import Timeline
from .contents import CATEGORIES, Content, worst_stage
from .measured import MeasuredStep
from .step_trace import Trace

TIME_PARTS = ("compute", "exposed_communication", "bubble", "optimizer")
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
LENGTHS = 7  # sequence lengths of the heat map: doublings
FACTORS_BELOW = 3  # of them below the run's own


def bars(label: str, content: Content) -> list[Bar]:
    """One bar per pipeline stage."""
    memory = content["memory"]
    stages = memory["by_stage"]
    outside = (memory["context_bytes"] or 0) + (memory["nccl_bytes"] or 0)
    found = []
    for stage in stages:
        allocated = stage["peak_allocated_bytes"]
        reserved = stage["peak_reserved_bytes"] or allocated
        alone = len(stages) == 1
        total = memory["device_used_bytes"] if alone else reserved + outside
        found.append(
            Bar(
                label if alone else f"{label}, stage {stage['stage']}",
                {name: stage[f"{name}_bytes"] for name in CATEGORIES},
                total - allocated,
                total,
                memory["capacity_bytes"],
                memory["fits"] if alone else total <= memory["capacity_bytes"],
            )
        )
    return found


def step_timeline(
    label: str, content: Content, trace: Trace, measured: Sequence[Line] = ()
) -> Timeline:
    """The traced step; the level of the allocator as a line on top, and what was measured."""
    events = len(trace.reserved_bytes)
    reserved = Line("reserved", np.linspace(0, 1, events).tolist(), trace.reserved_bytes.tolist())
    return Timeline(
        label,
        trace.category_bytes,
        trace.phases,
        trace.peak,
        worst_stage(content)["peak_instant"],
        content["memory"]["capacity_bytes"],
        (reserved,),
        measured,
    )


def line_of(step: MeasuredStep, trace: Trace) -> Line:
    """The last micro-batch and the update of a measured step, over the traced ones.

    Event over event where there are as many, else phase over phase.
    """
    begin, starts = step.last_micro_batch
    events = len(trace.reserved_bytes)
    points = [(event - begin - 1, nbytes) for event, nbytes in step.points if event > begin]
    places = np.array([event for event, _ in points], dtype=float)
    if step.events - begin != events:
        traced = [start for start, _ in trace.phases]
        alike = len(traced) == len(starts)
        seen = [*(starts if alike else [0]), step.events - begin]
        places = np.interp(places, seen, [*(traced if alike else [0]), events])
    levels = [nbytes for _, nbytes in points]
    return Line(step.kind, (places / events).tolist(), levels, f"PyTorch {step.torch}")


def allocator_segments(trace: Trace) -> list[MapSegment]:
    """The segments at the peak, adjacent blocks of one kind together."""
    return [
        MapSegment(segment.size, segment.small, list(_blocks(segment)))
        for segment in trace.segments
    ]


def _blocks(segment: SegmentRecord) -> list[MapBlock]:
    def kind(block: Any) -> str:
        return "free" if block.state == "inactive" else str(block.label).partition("/")[0]

    found = []
    for name, members in groupby(segment.blocks, kind):
        sizes = [block.size for block in members]
        found.append(MapBlock(name, sum(sizes), len(sizes)))
    return found


def convention_counts(label: str, content: Content) -> Conventions:
    """FLOPs of a step by convention; MFU where the estimate knows the time of a step."""
    flops, gpus = content["flops"], content["run"]["cluster"]["gpus"]
    peak, seconds = flops["dense_peak_flops_per_second"], content["time"]["step_seconds"]
    mfu = {}
    if peak and seconds:
        mfu = {
            name: count / seconds / gpus / peak for name, count in flops["by_convention"].items()
        }
    return Conventions(label, flops["by_convention"], mfu)


def step_time(label: str, content: Content) -> StepTime | None:
    """Seconds by part, where the estimate knows them."""
    parts = content["time"]["breakdown"]
    if parts is None:
        return None
    return StepTime(label, {name.replace("_", " "): float(parts[name]) for name in TIME_PARTS})


def roof_of(run: Run, content: Content) -> Roof | None:
    """Peak and bandwidth of the GPU, where both are known."""
    gpu = run.cluster.gpu
    peak, bandwidth = (
        content["flops"]["dense_peak_flops_per_second"],
        gpu.bandwidth_bytes_per_second,
    )
    return None if peak is None or bandwidth is None else Roof(gpu.name, peak, bandwidth)


def operators_of(run: Run) -> list[Operator]:
    """Products and attention cores of one micro-batch, forward and backward, all layers together.

    Bytes are those of the tensors that an operator reads and writes, each once. [R1]
    """
    training = policy_of(run.parallel).computed(run.training)
    program = build(run.model, training, device_of(run), num_layers=1)
    found: dict[str, list[int]] = {}
    for group in program.root.body:
        layers = run.model.num_layers if isinstance(group, Part) and group.layer is not None else 1
        for op in group.ops() if isinstance(group, Part) else [group]:
            totals = found.setdefault(op.name, [0, 0])
            totals[0] += layers * int(op.flops + op.backward_flops)
            totals[1] += layers * moved_bytes(op)
    return [Operator(name, flops, moved) for name, (flops, moved) in found.items() if flops]


def moved_bytes(op: Op) -> int:
    """Forward: what is read and written; backward: gradients in, what was saved, gradients out."""
    forward = (*op.reads, *op.writes)
    backward = (*op.writes, *op.saves, *op.gradients)
    return int(sum(tensor.nbytes for tensor in (*forward, *backward)))


def heat_map(label: str, run: Run, content: Content) -> HeatMap:
    """Micro-batch size by sequence length around the run, whose own verdict is the estimate's."""
    sizes = sorted({*MICRO_BATCHES, run.training.micro_batch_size})
    lengths = sequence_lengths(run)
    runs = [resized(run, size, length) for size in sizes for length in lengths]
    cells = []
    for resized_run, memory in zip(runs, memories_of(runs), strict=True):
        if isinstance(memory, Exception):
            cells.append(HeatCell(None, None, False, str(memory)))
            continue
        own = resized_run.training == run.training
        fits = content["memory"]["fits"] if own else memory.fits
        cells.append(
            HeatCell(memory.peak_requested_bytes, memory.capacity_bytes, fits, why_not(memory))
        )
    columns = len(lengths)
    return HeatMap(
        label,
        "micro-batch size",
        "sequence length, tokens",
        [str(size) for size in sizes],
        [f"{length:,}" for length in lengths],
        [cells[i : i + columns] for i in range(0, len(cells), columns)],
        chosen=(sizes.index(run.training.micro_batch_size), lengths.index(run.training.seq_len)),
    )


def sequence_lengths(run: Run) -> list[int]:
    """Halvings and doublings of the run's own, as far as the model's positions go."""
    own = run.training.seq_len
    most = run.model.max_position_embeddings if run.model.positions == "learned" else None
    below = [own >> i for i in range(1, FACTORS_BELOW + 1) if own % (1 << i) == 0]
    above = [own << i for i in range(1, LENGTHS - len(below)) if most is None or own << i <= most]
    return sorted([*below, own, *above])


def resized(run: Run, micro_batch_size: int, seq_len: int) -> Run:
    """The run with another micro-batch; its global batch is the next multiple where it must be."""
    step = micro_batch_size * run.parallel.dp
    batch = -(-run.training.global_batch_size // step) * step
    keys = run.training.model_dump() | {
        "micro_batch_size": micro_batch_size,
        "seq_len": seq_len,
        "global_batch_size": batch,
    }
    return run.model_copy(update={"training": validated(type(run.training), keys, "training")})
