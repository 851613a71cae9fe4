"""Giving cached memory back to the device: empty_cache, the retry after a miss, garbage collection.

Ref: c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks, release_available_cached_blocks,
garbage_collect_cached_blocks.
"""
from __future__ import annotations

from . import expandable
from .blocks import Block
from .heap import Heap
from .pools import FreeList, Pool
from .settings import UNLIMITED_BYTES


def release_cached(heap: Heap) -> None:
    """Release every segment that is one free block, and every free page of expandable segments."""
    for pool in (heap.large, heap.small):
        free = list(pool.free_blocks())
        for block in free:
            if block.segment is None and not block.is_split:
                release_segment(heap, block)
        for block in free:
            if block.segment is not None:
                expandable.unmap(heap, block)


def release_oversize(heap: Heap, free_list: FreeList, size: int) -> bool:
    """With max_split_size: release just enough oversize blocks for `size`; whether it was enough.

    One block that is large enough if there is one, else the largest ones. [A6]
    """
    limit = heap.settings.max_split_size_bytes
    if limit == UNLIMITED_BYTES or heap.settings.expandable_segments:
        return False
    wanted = max(size, limit)
    position = free_list.first_of_size(wanted)
    if position < len(free_list.blocks):
        release_segment(heap, free_list.blocks[position])
        return True
    released = 0
    while released < wanted and free_list.blocks and free_list.blocks[-1].size >= limit:
        largest = free_list.blocks[-1]
        released += largest.size
        release_segment(heap, largest)
    return released >= wanted


def collect_garbage(heap: Heap, allowed_bytes: int) -> None:
    """Release unsplit large blocks of at least average age until below the threshold. [A7]

    The age of a block is the number of searches in its pool since it was filed. A round releases
    every old block, even beyond the target; the average is then taken over what is left.
    """
    pool = heap.large
    threshold = int(heap.settings.garbage_collection_threshold * allowed_bytes)
    excess = heap.reserved_bytes - threshold
    if excess <= 0:
        return
    candidates = [block for block in pool.free_blocks() if _collectable(block)]
    total_age = sum(_age(pool, block) for block in candidates)
    while excess > 0 and candidates:
        average_age = total_age / len(candidates)
        old = [block for block in candidates if _age(pool, block) >= average_age]
        if not old:
            return
        for block in old:
            excess -= block.size
            total_age -= _age(pool, block)
            candidates.remove(block)
            release_segment(heap, block)


def release_segment(heap: Heap, block: Block) -> None:
    """cudaFree of a segment that is one free block."""
    pool = block.free_list.pool
    block.free_list.remove(block)
    heap.device.release(block.size)
    heap.reserve(pool, -block.size)
    heap.count_segment(pool, block.size, -1)
    heap.record("segment_free", block, block.size, heap.cause)
    del heap.segment_heads[block.address]


def _collectable(block: Block) -> bool:
    return block.segment is None and not block.is_split


def _age(pool: Pool, block: Block) -> int:
    return pool.searches - block.searches_before
