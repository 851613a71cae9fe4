"""What repeats in a run is walked once: micro-batches, and whole steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .allocator.repetition import Part, Repeat
from .ledger import Memory


@dataclass(frozen=True)
class Stretch:
    """Events begin ... end - 1 of a ledger stand for `times` repetitions of them."""

    begin: int
    end: int
    times: int


@dataclass(frozen=True)
class _Walk:
    """One walk: its events, where they began, and whether it left the ledger as it found it."""

    begin: int
    events: list[tuple[int, int, object]]
    leaves_no_trace: bool


class Repetitions:
    """Runs the same pass again and again until it repeats, and notes how often it would have run."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self.stretches: list[Stretch] = []

    def run(self, walk: Callable[[], None], times: int) -> None:
        """Walk until two walks in a row made the same events and the second left the ledger as it found
        it, with the same holders of the same allocations: the third would be like it."""
        before: _Walk | None = None
        for left in range(times - 1, -1, -1):
            done = self._walk(walk)
            if done.leaves_no_trace and before is not None and done.events == before.events:
                end = len(self.memory.events)
                self.stretches.append(Stretch(done.begin, end, left + 1))
                return
            before = done

    def _walk(self, walk: Callable[[], None]) -> _Walk:
        memory = self.memory
        begin, first, held = len(memory.events), len(memory.holders), list(memory.holders)
        walk()
        same = memory.holders[:first] == held and not any(memory.holders[first:])
        return _Walk(begin, [(sign, number - first if number >= first else ~number, nbytes)
                             for sign, number, nbytes in memory.events[begin:]], same)

    def parts(self, begin: int = 0, end: int | None = None) -> list[Part]:
        """The ledger's events from number `begin` to `end`, with what repeats written once."""
        parts: list[Part] = []
        events = self.memory.events
        end = len(events) if end is None else end
        for stretch in self.stretches:
            if begin <= stretch.begin and stretch.end <= end:
                parts += [events[begin:stretch.begin],
                          Repeat([events[stretch.begin:stretch.end]], stretch.times)]
                begin = stretch.end
        return [*parts, events[begin:end]]
