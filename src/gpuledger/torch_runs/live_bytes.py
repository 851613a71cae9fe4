"""The requested bytes that live over one steady step, as a curve that is small enough for a file.

The step is run without hooks, so its peak is that of the steps before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .step import Trainer

PHASES = {"forward": "forward", "backward": "backward", "optimizer": "step"}  # by the boundary that ends it
COLUMNS = 600  # of the last micro-batch and the update: twice what a chart draws
COLUMNS_BEFORE = 300  # of the micro-batches before it
Point = tuple[int, int]  # (allocations and frees before it, live bytes)


def live_bytes_of_step(trainer: Trainer) -> dict[str, Any]:
    """Runs one step of a trainer in steady state and returns its curve (see `curve`)."""
    from .stream import recording, requested

    begin = requested("current")
    before, seen = moves_so_far(), []
    with recording() as history:
        trainer.step(lambda boundary: seen.append((boundary, moves_so_far() - before)))
        moves = [sign * nbytes for sign, _, nbytes in history.events()]
    return curve(list(accumulate(moves, initial=begin)), list(marks(seen)))


def moves_so_far() -> int:
    """Allocations and completed frees of the current device since the process began."""
    import torch

    torch.cuda.synchronize()
    counters = torch.cuda.memory_stats()
    allocated: int = counters["allocation.all.allocated"]
    freed: int = counters["active.all.freed"]
    return allocated + freed


def marks(seen: Sequence[tuple[str, int]]) -> Iterator[tuple[int, str]]:
    """Where each phase begins, from the boundaries (name, moves before it), each the end of one."""
    begin = 0
    for boundary, position in seen:
        if boundary in PHASES:
            yield begin, PHASES[boundary]
        begin = position


def curve(levels: Sequence[int], phases: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """The step as JSON: `events`, `peak_bytes` and `peak_event`, `marks`, `points`.

    levels: live bytes after each of 0, 1, 2 ... events. Of each column of the curve the first
    lowest and the first highest level are kept, and so are the ends, the marks and the peak: what
    a chart with so many columns shows is the same.
    """
    peak = max(range(len(levels)), key=levels.__getitem__)
    last = [position for position, name in phases if name == "forward"][-1]
    kept = {0, peak, len(levels) - 1, *(position for position, _ in phases)}
    kept.update(extremes(levels, 0, last, COLUMNS_BEFORE))
    kept.update(extremes(levels, last, len(levels), COLUMNS))
    return {
        "events": len(levels) - 1, "peak_bytes": levels[peak], "peak_event": peak,
        "marks": [[position, name] for position, name in phases],
        "points": [[i, levels[i]] for i in sorted(kept)],
    }


def extremes(levels: Sequence[int], begin: int, end: int, columns: int) -> Iterator[int]:
    """Indices of the first lowest and first highest level of each column of begin..end."""
    for number in range(columns):
        column = range(begin + (end - begin) * number // columns,
                       begin + (end - begin) * (number + 1) // columns)
        if column:
            yield min(column, key=levels.__getitem__)
            yield max(column, key=levels.__getitem__)
