"""What holds for every sequence of operations, under every setting."""
from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.memory.allocator import (
    AllocatorSettings,
    Block,
    CachingAllocator,
    OutOfMemory,
)
from gpuledger.memory.allocator.sizes import MIB

SETTINGS = [
    AllocatorSettings(),
    AllocatorSettings(expandable_segments=True),
    AllocatorSettings(max_split_size_bytes=32 * MIB),
    AllocatorSettings(expandable_segments=True, max_split_size_bytes=32 * MIB),
    AllocatorSettings(roundup_power2_divisions=(4,) * 16, large_segment_size_bytes=32 * MIB),
    AllocatorSettings(garbage_collection_threshold=0.3, per_process_memory_fraction=0.9),
]
TOTAL_BYTES = 256 * MIB
ALLOCATE, FREE, USE, EMPTY = "allocate", "free", "use", "empty"

operations = st.lists(st.tuples(
    st.sampled_from([ALLOCATE] * 5 + [FREE] * 4 + [USE, EMPTY]),
    st.one_of(st.integers(1, 5000), st.integers(1, 60 * MIB)),
    st.integers(0, 2),
), max_size=60)


@settings(max_examples=150, deadline=None)
@given(operations, st.sampled_from(SETTINGS))
def test_invariants(steps: list[tuple[str, int, int]], chosen: AllocatorSettings) -> None:
    allocator = CachingAllocator(chosen, TOTAL_BYTES)
    live: list[Block] = []
    for action, number, stream in steps:
        if action == ALLOCATE:
            with suppress(OutOfMemory):
                live.append(allocator.allocate(number, stream))
        elif action == EMPTY:
            allocator.empty_cache()
        elif live and action == FREE:
            allocator.free(live.pop(number % len(live)))
        elif live:
            allocator.record_stream(live[number % len(live)], stream)
        check(allocator, live)
    for block in live:
        allocator.free(block)
    allocator.process_events()
    check_everything_merged(allocator)
    allocator.empty_cache()
    check_nothing_left(allocator)


def check(allocator: CachingAllocator, live: list[Block]) -> None:
    stats = allocator.memory_stats()
    reserved, active, allocated, requested = (
        stats[f"{name}_bytes.all.current"]
        for name in ("reserved", "active", "allocated", "requested"))
    assert TOTAL_BYTES >= reserved >= active >= allocated >= sum(b.requested_bytes for b in live)
    assert active >= requested
    segments = allocator.segments()
    blocks = [block for segment in segments for block in segment.blocks]
    assert sum(segment.size for segment in segments) == reserved
    assert sum(b.size for b in blocks if b.state == "active_allocated") == allocated
    assert sum(b.size for b in blocks if b.state != "inactive") == active
    for before, after in pairwise(blocks):
        assert before.address + before.size <= after.address            # no overlap
    for segment in segments:
        for before, after in pairwise(segment.blocks):
            assert before.address + before.size == after.address        # no hole
            assert before.state != "inactive" or before.state != after.state    # merged
    assert sorted(filed(allocator)) == [
        (b.address, b.size) for b in blocks if b.state == "inactive"]


def filed(allocator: CachingAllocator) -> list[tuple[int, int]]:
    """Every free block is in exactly one list, in order."""
    found = []
    for pool in (allocator.heap.small, allocator.heap.large):
        for free_list in pool.free_lists.values():
            assert free_list.keys == sorted(free_list.keys)
            assert [block.key for block in free_list.blocks] == free_list.keys
            found += [(block.address, block.size) for block in free_list.blocks]
    return found


def check_everything_merged(allocator: CachingAllocator) -> None:
    for segment in allocator.segments():
        assert [block.state for block in segment.blocks] == ["inactive"]
    stats = allocator.memory_stats()
    assert stats["inactive_split.all.current"] == stats["inactive_split_bytes.all.current"] == 0


def check_nothing_left(allocator: CachingAllocator) -> None:
    stats = allocator.memory_stats()
    assert {key: n for key, n in stats.items() if key.endswith(".current") and n} == {}
    assert allocator.segments() == []
    assert allocator.heap.segment_heads == {}
    assert allocator.heap.device.used_bytes == 0
