"""A stream of allocations and frees, as a step program emits it, through the allocator."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from gpuledger.errors import InputError

from .allocator import DEFAULT_SETTINGS, CachingAllocator
from .blocks import Block
from .settings import AllocatorSettings

NO_STREAMS: Mapping[int, int] = MappingProxyType({})
Event = tuple[int, int, int]            # (+1 allocates | -1 frees, allocation number, bytes)


def replay(
    events: Iterable[Event],
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    total_bytes: int | None = None,
    *,
    labels: Sequence[str] | None = None,
    streams: Mapping[int, int] = NO_STREAMS,
    allocator: CachingAllocator | None = None,
) -> CachingAllocator:
    """The allocator after all events; what is still allocated then stays so.

    labels: name of each allocation number, for the history.
    streams: of allocation numbers that are not on the default stream.
    allocator: go on with this one, whose settings and capacity then hold.
    Requests of no bytes allocate nothing, as in PyTorch. Raises OutOfMemory at the event that
    finds no memory, InputError for a number that is freed but not allocated.
    """
    if allocator is None:
        allocator = CachingAllocator(settings, total_bytes)
    play(allocator, {}, events, streams, labels)
    return allocator


def play(
    allocator: CachingAllocator,
    live: dict[int, Block],
    events: Iterable[Event],
    streams: Mapping[int, int] = NO_STREAMS,
    labels: Sequence[str] | None = None,
) -> None:
    """Run events on an allocator; `live`, its blocks by allocation number, is brought up to date."""
    allocate, free = allocator.allocate, allocator.free
    for sign, number, nbytes in events:
        if not nbytes:
            continue
        if sign > 0:
            live[number] = allocate(nbytes, streams.get(number, 0), labels[number] if labels else "")
        elif number in live:
            free(live.pop(number))
        else:
            raise InputError(
                f"allocation {number} ({nbytes} bytes) is freed but not allocated",
                "every free must follow the allocation of the same number",
            )
