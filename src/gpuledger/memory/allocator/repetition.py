"""Streams in which some parts repeat, and the allocator that plays a repetition until nothing new can come.

The allocator is a function of its state: once a repetition ends in the state in which it began, all
further ones do the same again. They reach no new peak, find memory where it was found, and add to every
sum what this one has added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from .allocator import DEFAULT_SETTINGS, CachingAllocator
from .blocks import Block
from .heap import Heap
from .replay import NO_STREAMS, Event, play
from .settings import AllocatorSettings
from .statistics import Level, PoolUsage

LEVELS = ("reserved_bytes", "segments", "splits", "split_bytes")
SUMS = ("allocations_sum", "allocated_bytes_sum", "requested_bytes_sum")
COUNTERS = ("num_alloc_retries", "num_sync_all_streams", "num_device_alloc", "num_device_free")


@dataclass(frozen=True)
class Repeat:
    """Parts that run `times` times in a row and free exactly what they allocate."""

    parts: Sequence[Part]
    times: int


Part = Union[Sequence[Event], Repeat]       # noqa: UP007 (Repeat is not defined when this is read)


def expanded(parts: Sequence[Part]) -> Iterator[Event]:
    """Every event; repeated ones with the same numbers of allocations."""
    for part in parts:
        if isinstance(part, Repeat):
            for _ in range(part.times):
                yield from expanded(part.parts)
        else:
            yield from part


def replay_parts(
    parts: Sequence[Part],
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    total_bytes: int | None = None,
    *,
    streams: Mapping[int, int] = NO_STREAMS,
) -> CachingAllocator:
    """The allocator after all events of `expanded(parts)`: every statistic is the same, addresses of
    segments may differ where segments came and went in what was skipped. Raises what `replay` does."""
    allocator = CachingAllocator(settings, total_bytes)
    _Player(allocator, streams).play(parts)
    return allocator


class _Player:
    """Plays parts on one allocator; `live` are the blocks by number of the allocation."""

    def __init__(self, allocator: CachingAllocator, streams: Mapping[int, int]):
        self.allocator, self.streams = allocator, streams
        self.live: dict[int, Block] = {}

    def play(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, Repeat):
                self.repeat(part)
            else:
                play(self.allocator, self.live, part, self.streams)

    def repeat(self, part: Repeat) -> None:
        """Until a repetition ends as it began; the rest is added up."""
        heap = self.allocator.heap
        before = state_of(heap, self.live)
        for left in range(part.times - 1, -1, -1):
            sums = _sums(heap)
            self.play(part.parts)
            after = state_of(heap, self.live) if left else None
            if after == before:
                _add_sums(heap, sums, left)
                return
            before = after


def state_of(heap: Heap, live: Mapping[int, Block]) -> object:
    """All that the allocator's next answers depend on, except for pending events of other streams.

    Addresses only order blocks, so segments are listed by address without it. Ages count where garbage
    is collected.
    """
    numbers = {id(block): number for number, block in live.items()}
    segments = []
    for address in sorted(heap.segment_heads):
        block: Block | None = heap.segment_heads[address]
        assert block is not None
        first = block.free_list
        blocks = []
        while block is not None:
            free = not block.in_use and block.mapped
            age = block.free_list.pool.searches - block.searches_before if free else 0
            blocks.append((block.size, block.mapped, age, numbers.get(id(block), -1)))
            block = block.next
        segments.append((first.pool.small, first.stream, blocks))
    return heap.device.used_bytes, segments


def _levels(heap: Heap) -> Iterator[Level]:
    for usage in _usages(heap):
        yield from (getattr(usage, name) for name in LEVELS)
    yield heap.oversize_allocations
    yield heap.oversize_segments


def _usages(heap: Heap) -> tuple[PoolUsage, ...]:
    return heap.usage, heap.small.usage, heap.large.usage


def _sums(heap: Heap) -> list[int]:
    """Whatever only grows."""
    sums = [getattr(usage, name) for usage in _usages(heap) for name in SUMS]
    counters = [getattr(heap, name) for name in COUNTERS]
    return [*sums, *counters, *(level.increases for level in _levels(heap))]


def _add_sums(heap: Heap, earlier: list[int], times: int) -> None:
    """Add what was added since `earlier` so many times more."""
    grown = iter([times * (now - then) for now, then in zip(_sums(heap), earlier, strict=True)])
    for usage in _usages(heap):
        for name in SUMS:
            setattr(usage, name, getattr(usage, name) + next(grown))
    for name in COUNTERS:
        setattr(heap, name, getattr(heap, name) + next(grown))
    for level in _levels(heap):
        level.increases += next(grown)
