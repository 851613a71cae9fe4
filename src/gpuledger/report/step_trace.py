"""One steady step of a run as curves, and the allocator's segments at its peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config.run import Run
from ..estimate import device_of
from ..memory.allocator import CachingAllocator, SegmentRecord
from ..memory.allocator.allocator import DEFAULT_SETTINGS
from ..memory.ledger import CATEGORIES
from ..memory.run import rank_programs, whole_run
from ..memory.step import RankRunner

STEPS = 2  # the first makes optimizer states and settles the cache
MICROBATCHES = 2  # the second and all that follow it are alike
PHASES = {"forward": "forward", "backward": "backward", "optimizer step": "step"}


@dataclass(frozen=True)
class Trace:
    """The last micro-batch and the update of a steady step.

    category_bytes, reserved_bytes: after each event. phases: (index of its first event, name).
    peak: index of the highest requested bytes. segments: of the allocator at that moment.
    """

    category_bytes: dict[str, Any]
    reserved_bytes: Any
    phases: tuple[tuple[int, str], ...]
    peak: int
    segments: tuple[SegmentRecord, ...]


def trace_step(run: Run) -> Trace:
    """Walks and replays two steps of the whole model, with at most MICROBATCHES each.

    Raises InputError where the GPU's record does not say what kernels need to know.
    """
    few = with_few_microbatches(run)
    runner = whole_run(few, rank_programs(few, device_of(run)), STEPS)
    memory = runner.memory
    numbers = np.array([number for _, number, _ in memory.events])
    moves = np.array([sign * int(nbytes) for sign, _, nbytes in memory.events], dtype=np.int64)
    of = np.array([CATEGORIES.index(category) for category in memory.categories])[numbers]
    marks = runner.timeline.marks
    begin = next(start for start, name in reversed(marks) if name == "forward")
    levels = {
        name: np.cumsum(np.where(of == i, moves, 0))[begin:] for i, name in enumerate(CATEGORIES)
    }
    peak = int(np.argmax(sum(levels.values())))
    phases = tuple(
        (start - begin, PHASES[name]) for start, name in marks if start >= begin and name in PHASES
    )
    reserved, segments = replayed(runner, begin, begin + peak)
    return Trace(levels, reserved, phases, peak, segments)


def with_few_microbatches(run: Run) -> Run:
    """The run with a global batch of at most MICROBATCHES micro-batches: its steps peak alike."""
    few = min(MICROBATCHES, run.num_microbatches)
    batch = few * run.training.micro_batch_size * run.parallel.dp
    return run.model_copy(
        update={"training": run.training.model_copy(update={"global_batch_size": batch})}
    )


def replayed(runner: RankRunner, begin: int, peak: int) -> tuple[Any, tuple[SegmentRecord, ...]]:
    """Reserved bytes after each event from `begin` on, and the segments after event `peak`."""
    allocator = CachingAllocator(DEFAULT_SETTINGS, None)
    memory, live = runner.memory, {}
    levels = np.zeros(len(memory.events) - begin, dtype=np.int64)
    segments: tuple[SegmentRecord, ...] = ()
    reserved = allocator.heap.usage.reserved_bytes
    for i, (sign, number, nbytes) in enumerate(memory.events):
        if nbytes:
            if sign > 0:
                label = f"{memory.categories[number]}/{memory.tensors[number].name}"
                live[number] = allocator.allocate(nbytes, 0, label)
            else:
                allocator.free(live.pop(number))
        if i >= begin:
            levels[i - begin] = reserved.current
        if i == peak:
            segments = tuple(allocator.segments())
    return levels, segments
