"""Blocks that other streams may still read: freed only after those streams' events. [A5]

Ref: c10/cuda/CUDACachingAllocator.cpp, recordStream, insert_events, process_events.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .blocks import Block


class PendingEvents:
    """One queue of events per stream; each event belongs to a block handed back by the program."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Block]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, block: Block) -> None:
        """One event on every stream that used the block."""
        streams, block.streams = block.streams or set(), None
        block.events = len(streams)
        for stream in sorted(streams):
            self._queues.setdefault(stream, deque()).append(block)

    def complete(self) -> Iterator[Block]:
        """Empty all queues, stream by stream; each block at its last event."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for block in queue:
                block.events -= 1
                if not block.events:
                    yield block
