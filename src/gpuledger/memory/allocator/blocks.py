"""A block: one contiguous range of a segment, free or handed out."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .events import StreamTable
    from .expandable import ExpandableSegment
    from .pools import FreeList


class Block:
    """`size` bytes at `address`, linked to its neighbours in the same segment.

    in_use: handed out, or handed back but waiting for the events of other streams.
    mapped: False for the part of an expandable segment without memory behind it.
    The first block of a segment stays the same object until the segment is released.
    """

    __slots__ = (
        "address", "events", "free_list", "in_use", "key", "label", "mapped", "next", "previous",
        "requested_bytes", "searches_before", "segment", "size", "streams",
    )

    def __init__(
        self, address: int, size: int, free_list: FreeList, segment: ExpandableSegment | None = None
    ):
        self.address = address
        self.size = size
        self.free_list = free_list
        self.segment = segment
        self.mapped = True
        self.in_use = False
        self.requested_bytes = 0
        self.label = ""
        self.key = 0                            # its place in the free list
        self.searches_before = 0                # of its pool, when it was filed there
        self.previous: Block | None = None
        self.next: Block | None = None
        self.streams: StreamTable | None = None # other streams that used it (record_stream)
        self.events = 0                         # of those, not yet seen complete after the free

    @property
    def is_split(self) -> bool:
        """Whether the segment holds other blocks too."""
        return self.previous is not None or self.next is not None

    def cut(self, size: int) -> Block:
        """Keep the first `size` bytes; the rest becomes a new block behind, which is returned."""
        rest = Block(self.address + size, self.size - size, self.free_list, self.segment)
        rest.mapped = self.mapped
        rest.previous = self
        following = rest.next = self.next
        if following is not None:
            following.previous = rest
        self.next = rest
        self.size = size
        return rest

    def absorb_next(self) -> None:
        """Merge with the following block, whose object is dead afterwards."""
        absorbed = self.next
        assert absorbed is not None
        self.size += absorbed.size
        following = self.next = absorbed.next
        if following is not None:
            following.previous = self


def can_merge(block: Block, neighbor: Block | None) -> bool:
    """Free neighbours become one block, if both have memory behind them or neither has."""
    return neighbor is not None and not neighbor.in_use and neighbor.mapped == block.mapped
