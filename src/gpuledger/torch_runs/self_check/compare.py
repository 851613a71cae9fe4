"""Two streams of allocations and frees, compared: the engine's and PyTorch's."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Event = tuple[int, int, int]        # +1 or -1, allocation number, bytes


@dataclass(frozen=True)
class Difference:
    """Where two streams part: position, and what each has there."""

    position: int
    engine: tuple[Event, ...]
    pytorch: tuple[Event, ...]


def first_difference(engine: Iterable[Event], pytorch: Iterable[Event]) -> Difference | None:
    """None if both allocate and free the same, in order; order inside a run of frees does not
    count."""
    mine, theirs = sorted_runs(renumbered(engine)), sorted_runs(renumbered(pytorch))
    if mine == theirs:
        return None
    position = next(
        (i for i, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]),
        min(len(mine), len(theirs)),
    )
    near = slice(max(0, position - 3), position + 7)
    return Difference(position, tuple(mine[near]), tuple(theirs[near]))


def renumbered(events: Iterable[Event]) -> list[Event]:
    """Allocations numbered in order; what is freed without having been allocated here is -1."""
    numbers: dict[int, int] = {}
    result = []
    for sign, number, nbytes in events:
        if sign > 0:
            numbers[number] = len(numbers)
        result.append((sign, numbers.get(number, -1), int(nbytes)))
    return result


def sorted_runs(events: Iterable[Event]) -> list[Event]:
    """Each run of consecutive frees in the order of its numbers."""
    result: list[Event] = []
    run: list[Event] = []
    for event in events:
        if event[0] < 0:
            run.append(event)
        else:
            result += [*sorted(run), event]
            run = []
    return result + sorted(run)


def peak_and_end(events: Iterable[Event]) -> tuple[int, int]:
    """(highest sum of live bytes, sum at the end)."""
    live = highest = 0
    for sign, _, nbytes in events:
        live += sign * nbytes
        highest = max(highest, live)
    return highest, live
