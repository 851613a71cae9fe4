"""Growth from step to step: the leak that ends a run hours later. No torch."""
from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .memory_history import Block, Event, Holding, live_blocks


@dataclass(frozen=True)
class Growth:
    """Live bytes that rise from step to step and never fall: a leak.

    Measured at the end of each optimizer step, from ``first_step`` to ``last_step`` (counted from
    1). ``lines`` are the lines that allocate what remains, with bytes and blocks per step.
    """

    requested_bytes_per_step: int
    allocated_bytes_per_step: int
    first_step: int
    last_step: int
    lines: tuple[Holding, ...]


@dataclass(frozen=True)
class Mark:
    """The end of one optimizer step."""

    time_us: int
    requested_bytes: int
    allocated_bytes: int


# Optimizer states appear in the first step and DDP rebuilds its buckets in the second.
WARM_UP_STEPS = 2
FEWEST_INTERVALS = 3
FEWEST_STEPS = WARM_UP_STEPS + 1 + FEWEST_INTERVALS


def growth(marks: Sequence[Mark], events: Sequence[Event]) -> Growth | None:
    """The leak that the marks show; None below 6 steps, or if live bytes fell or stood still."""
    if len(marks) < FEWEST_STEPS:
        return None
    steady = marks[WARM_UP_STEPS:]
    intervals = len(steady) - 1
    rises = [after.requested_bytes - before.requested_bytes
             for before, after in pairwise(steady)]
    if min(rises) < 0 or 2 * sum(rise > 0 for rise in rises) <= intervals:
        return None
    allocated = steady[-1].allocated_bytes - steady[0].allocated_bytes
    return Growth(
        requested_bytes_per_step=sum(rises) // intervals,
        allocated_bytes_per_step=allocated // intervals,
        first_step=WARM_UP_STEPS + 1,
        last_step=len(marks),
        lines=_lines_that_remain(marks, events),
    )


def _lines_that_remain(marks: Sequence[Mark], events: Sequence[Event]) -> tuple[Holding, ...]:
    """Per line, bytes and blocks a step that outlive the step they were made in.

    What the last step made is left out: its gradients are still in use.
    """
    ends = [mark.time_us for mark in marks]
    per_line: dict[str, list[Block]] = defaultdict(list)
    steps_of: dict[str, set[int]] = defaultdict(set)
    for block in live_blocks(events, until_us=ends[-1]):
        step = bisect_left(ends, block.time_us)
        if WARM_UP_STEPS <= step < len(ends) - 1:
            per_line[block.line].append(block)
            steps_of[block.line].add(step)
    steps = len(ends) - 1 - WARM_UP_STEPS
    lines = [
        Holding(line, sum(block.requested_bytes for block in blocks) // steps,
                -(-len(blocks) // steps))
        for line, blocks in per_line.items() if 2 * len(steps_of[line]) > steps
    ]
    return tuple(sorted(lines, key=lambda holding: -holding.requested_bytes))
