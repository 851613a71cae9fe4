"""Expandable segments: one range of addresses per pool and stream, memory mapped as needed. [A8]

Ref: c10/cuda/CUDACachingAllocator.cpp, Note [Expandable Segments], find_expandable_block,
map_block, unmap_block.
"""
from __future__ import annotations

from dataclasses import dataclass

from .blocks import Block, can_merge
from .heap import Heap
from .pools import FreeList, Pool
from .sizes import round_up


@dataclass(frozen=True)
class ExpandableSegment:
    """Addresses for 9/8 of the device's memory; memory comes and goes in pages."""

    address: int
    page_bytes: int


def allocate(heap: Heap, free_list: FreeList, size: int) -> Block | None:
    """A free block of at least `size` bytes, taken out of its list, or None without memory.

    Maps the lowest addresses that fit. Pages mapped before the memory ran out stay mapped.
    """
    block = _lowest_fit(heap, free_list, size)
    if not block.mapped:
        mapped = _map(heap, block, min(block.size, size))
        if mapped is None:
            return None
        block = mapped
    while block.size < size:                    # a free block in front of an unmapped one
        following = block.next
        assert following is not None
        mapped = _map(heap, following, min(size - block.size, following.size))
        if mapped is None:
            return None
        block = mapped
    free_list.remove(block)
    return block


def unmap(heap: Heap, block: Block) -> None:
    """Return the whole pages inside a free block to the device; the ends stay free blocks."""
    segment = block.segment
    assert segment is not None
    page = segment.page_bytes
    begin = segment.address + round_up(block.address - segment.address, page)
    end = segment.address + (block.address + block.size - segment.address) // page * page
    if begin >= end:
        return
    free_list = block.free_list
    free_list.remove(block)
    if begin > block.address:
        front, block = block, block.cut(begin - block.address)
        free_list.add(front)
    if block.address + block.size > end:
        free_list.add(block.cut(end - block.address))
    nbytes = block.size
    heap.device.used_bytes -= nbytes
    heap.reserve(free_list.pool, -nbytes)
    heap.record("segment_unmap", block, nbytes, heap.cause)
    block.mapped = False
    block = _merge_with_neighbors(block)
    if block.is_split:
        free_list.add_unmapped(block)
    else:                                       # nothing is left of the segment
        del heap.segment_heads[block.address]


def _lowest_fit(heap: Heap, free_list: FreeList, size: int) -> Block:
    """The first of adjacent free or unmapped blocks with room for `size`; else a new segment."""
    for block in free_list.unmapped:
        before = block.previous
        first = block if before is None or before.in_use else before
        if _room_from(first, size) >= size:
            return first
    return _new_segment(heap, free_list)


def _room_from(first: Block, size: int) -> int:
    """Bytes of adjacent blocks not in use from `first` on, counted up to `size` or beyond."""
    room, block = 0, first
    while room < size and not block.in_use:
        room += block.size
        if block.next is None:
            break
        block = block.next
    return room


def _new_segment(heap: Heap, free_list: FreeList) -> Block:
    page = free_list.pool.page_bytes
    total = heap.device.total_bytes
    size = round_up(total + total // 8, page)
    address = heap.device.reserve_addresses(size)
    block = Block(address, size, free_list, ExpandableSegment(address, page))
    block.mapped = False
    heap.segment_heads[address] = block
    free_list.add_unmapped(block)
    return block


def _map(heap: Heap, block: Block, size: int) -> Block | None:
    """Put memory behind the first pages of an unmapped block; the free block it became part of."""
    free_list = block.free_list
    pool: Pool = free_list.pool
    nbytes = round_up(size, pool.page_bytes)
    if not heap.device.take(nbytes):
        return None
    free_list.remove_unmapped(block)
    if nbytes < block.size:
        free_list.add_unmapped(block.cut(nbytes))
    block.mapped = True
    heap.reserve(pool, nbytes)
    heap.record("segment_map", block, nbytes, heap.cause)
    block = _merge_with_neighbors(block)
    free_list.add(block)
    return block


def _merge_with_neighbors(block: Block) -> Block:
    """One block of this and the free neighbours of its kind, which leave their lists."""
    if can_merge(block, block.next):
        _forget(block.next)
        block.absorb_next()
    before = block.previous
    if before is not None and can_merge(block, before):
        _forget(before)
        before.absorb_next()
        return before
    return block


def _forget(block: Block | None) -> None:
    assert block is not None
    if block.mapped:
        block.free_list.remove(block)
    else:
        block.free_list.remove_unmapped(block)
