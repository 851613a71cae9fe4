"""A recorded step as numbered allocations, and which of them an address meant when."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Move:
    """Allocation `number` appears (+1) or goes (-1); None: it is older than the trace."""

    sign: int
    number: int | None
    address: int
    nbytes: int


class Trace:
    """The allocator's entries of one device, numbered in order of allocation."""

    def __init__(self, entries: list[dict[str, Any]], free: str = "free_completed"):
        self.moves: list[Move] = list(numbered_moves(entries, free))
        self.by_address: dict[int, list[int]] = {}
        for move in self.moves:
            if move.sign > 0 and move.number is not None:
                self.by_address.setdefault(move.address, []).append(move.number)

    def at(self, address: int, allocations: int) -> int | None:
        """The latest allocation at this address among the first `allocations`, or None."""
        numbers = self.by_address.get(address, [])
        place = bisect_left(numbers, allocations)
        return numbers[place - 1] if place else None


def numbered_moves(entries: list[dict[str, Any]], free: str) -> Iterator[Move]:
    """alloc entries, and those named `free`: free_completed, or free_requested, which comes first
    where another stream still has to be done with the storage. Segments are no moves of storage."""
    live: dict[int, int] = {}
    allocations = 0
    for entry in entries:
        address, nbytes = entry["addr"], entry["size"]
        if entry["action"] == "alloc":
            yield Move(1, allocations, address, nbytes)
            live[address] = allocations
            allocations += 1
        elif entry["action"] == free:
            yield Move(-1, live.pop(address, None), address, nbytes)
