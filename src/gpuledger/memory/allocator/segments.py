"""Segments and their blocks as plain records, the way `torch.cuda.memory_snapshot()` shows them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .blocks import Block
from .heap import Heap

BlockState = Literal["active_allocated", "active_pending_free", "inactive"]


@dataclass(frozen=True)
class BlockRecord:
    """One block; requested_bytes and label are those of its latest request."""

    address: int
    size: int
    requested_bytes: int
    state: BlockState
    label: str


@dataclass(frozen=True)
class SegmentRecord:
    """A contiguous range of device memory; an expandable segment has one for each mapped range."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[BlockRecord, ...]

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks that the program holds."""
        return sum(b.size for b in self.blocks if b.state == "active_allocated")

    @property
    def active_bytes(self) -> int:
        """Bytes of the blocks that the program holds or other streams may still read."""
        return sum(b.size for b in self.blocks if b.state != "inactive")

    @property
    def requested_bytes(self) -> int:
        """Unrounded bytes of the active blocks."""
        return sum(b.requested_bytes for b in self.blocks if b.state != "inactive")


def segment_records(heap: Heap) -> list[SegmentRecord]:
    """All segments, by address."""
    records = []
    for head in heap.segment_heads.values():
        block: Block | None = head
        while block is not None:
            mapped: list[Block] = []
            while block is not None and block.mapped:
                mapped.append(block)
                block = block.next
            if mapped:
                records.append(_segment(mapped))
            while block is not None and not block.mapped:
                block = block.next
    return sorted(records, key=lambda record: record.address)


def _segment(blocks: list[Block]) -> SegmentRecord:
    first = blocks[0]
    return SegmentRecord(
        address=first.address,
        size=sum(block.size for block in blocks),
        stream=first.free_list.stream,
        small=first.free_list.pool.small,
        expandable=first.segment is not None,
        blocks=tuple(_block(block) for block in blocks),
    )


def _block(block: Block) -> BlockRecord:
    state: BlockState
    state = "inactive"
    if block.in_use:
        state = "active_pending_free" if block.events else "active_allocated"
    return BlockRecord(block.address, block.size, block.requested_bytes, state, block.label)
