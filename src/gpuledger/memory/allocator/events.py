"""Blocks that other streams may still read: freed only after those streams' events. [A5]

PyTorch keeps the streams in hash tables and looks at their events in the order of the slots, which
decides in which order blocks that become free together are merged, and so some peaks.
Ref: c10/cuda/CUDACachingAllocator.cpp (recordStream, insert_events, process_events),
c10/util/flat_hash_map.h, c10/core/Stream.h.
"""
from __future__ import annotations

from bisect import insort_right
from collections import deque
from collections.abc import Iterator

from .blocks import Block

_FIBONACCI = 11400714819323198485       # 2^64 / golden ratio
_CUDA_DEVICE_0 = 1 << 56                # device type and index in the hash of a stream
_FIRST_SLOTS = 4


class StreamTable:
    """A set of streams, iterated in the slot order of PyTorch's hash table. It never shrinks."""

    def __init__(self) -> None:
        self._slots_log2 = 0            # of the number of slots; 0: no slots yet
        self._streams: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._streams)

    def __iter__(self) -> Iterator[int]:
        return iter(self._streams)

    def add(self, stream: int) -> bool:
        """Whether it is new. At most half of the slots are filled."""
        if stream in self._streams:
            return False
        if 2 * (len(self._streams) + 1) > self._slots:
            self._slots_log2 = max(self._slots_log2 + 1, _FIRST_SLOTS.bit_length() - 1)
            self._streams.sort(key=self._slot)
        insort_right(self._streams, stream, key=self._slot)
        return True

    def clear(self) -> None:
        """Empty, with the slots there are."""
        self._streams = []

    @property
    def _slots(self) -> int:
        return 1 << self._slots_log2 if self._slots_log2 else 0

    def _slot(self, stream: int) -> int:
        product = _FIBONACCI * (_CUDA_DEVICE_0 | stream) % 2**64
        return product >> (64 - self._slots_log2)


class PendingEvents:
    """One queue of events per stream; each event belongs to a block handed back by the program."""

    def __init__(self) -> None:
        self._streams = StreamTable()
        self._queues: dict[int, deque[Block]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, block: Block) -> None:
        """One event on every stream that used the block."""
        streams, block.streams = block.streams or StreamTable(), None
        for stream in streams:
            block.events += 1
            self._streams.add(stream)
            self._queues.setdefault(stream, deque()).append(block)

    def complete(self) -> Iterator[Block]:
        """Empty all queues, stream by stream; each block at its last event."""
        queues = [self._queues[stream] for stream in self._streams]
        self._streams.clear()
        self._queues = {}
        for queue in queues:
            for block in queue:
                block.events -= 1
                if not block.events:
                    yield block
