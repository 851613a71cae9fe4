"""The rules of PyTorch's caching allocator, each with integers computed by hand."""
from __future__ import annotations

import pytest

from gpuledger.errors import InputError
from gpuledger.memory.allocator import (
    AllocatorSettings,
    CachingAllocator,
    OutOfMemory,
    replay,
)
from gpuledger.memory.allocator.events import StreamTable
from gpuledger.memory.allocator.oom import size_text
from gpuledger.memory.allocator.sizes import MIB, block_bytes, segment_bytes

GIB = 2**30
SPLIT_64 = AllocatorSettings(max_split_size_bytes=64 * MIB)
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def stat(allocator: CachingAllocator, key: str) -> int:
    return allocator.memory_stats()[key]


def layout(allocator: CachingAllocator) -> list[list[tuple[int, bool]]]:
    """For each segment, its blocks as (bytes, handed out)."""
    return [[(b.size, b.state == "active_allocated") for b in s.blocks]
            for s in allocator.segments()]


@pytest.mark.parametrize(("nbytes", "size"), [
    (1, 512), (511, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (MIB, MIB), (MIB + 1, MIB + 512),
])
def test_a_block_is_a_multiple_of_512(nbytes: int, size: int) -> None:
    assert block_bytes(nbytes) == size


@pytest.mark.parametrize(("nbytes", "steps", "size"), [
    (1200, 4, 1536),                        # not above 512 x 4: a multiple of 512
    (2048, 4, 2048),
    (2049, 4, 2560),                        # 2048 + 1 step of 512
    (5000, 4, 5120),                        # 4096, 5120, 6144, 7168
    (4096, 4, 4096),
    (7169, 4, 8192),
    (MIB + 1, 4, 1_310_720),                # 1.25 MiB
    (3 * MIB, 1, 3 * MIB),                  # one step is no rounding
    (3 * MIB, 2, 3 * MIB),
    (3 * MIB + 1, 2, 4 * MIB),
])
def test_rounding_to_divisions_of_a_power_of_2(nbytes: int, steps: int, size: int) -> None:
    assert block_bytes(nbytes, (steps,) * 16) == size


def test_each_interval_of_sizes_has_its_own_divisions() -> None:
    divisions = tuple([1] * 9 + [2, 4] + [8] * 5)     # [256:1,512:2,1024:4,>:8]
    assert block_bytes(300 * MIB + 1, divisions) == 300 * MIB + 512
    assert block_bytes(600 * MIB, divisions) == 768 * MIB
    assert block_bytes(1200 * MIB, divisions) == 1280 * MIB
    assert block_bytes(2100 * MIB, divisions) == 2304 * MIB
    assert block_bytes(65 * GIB, divisions) == 72 * GIB     # the last interval has no end


@pytest.mark.parametrize(("size", "segment"), [
    (512, 2 * MIB), (MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB), (10 * MIB + 512, 12 * MIB), (100 * MIB, 100 * MIB),
])
def test_segments(size: int, segment: int) -> None:
    assert segment_bytes(size) == segment


def test_small_requests_share_a_segment() -> None:
    allocator = CachingAllocator()
    first, second = allocator.allocate(100), allocator.allocate(600)
    assert second.address == first.address + 512
    assert layout(allocator) == [[(512, True), (1024, True), (2 * MIB - 1536, False)]]
    assert stat(allocator, "requested_bytes.all.current") == 700
    assert stat(allocator, "allocated_bytes.small_pool.current") == 1536
    assert stat(allocator, "reserved_bytes.all.current") == 2 * MIB
    assert stat(allocator, "inactive_split_bytes.all.current") == 2 * MIB - 1536
    assert stat(allocator, "inactive_split.all.current") == 1


@pytest.mark.parametrize(("nbytes", "blocks"), [
    (11 * MIB, [(12 * MIB, True)]),                             # a rest of 1 MiB is a tail
    (11 * MIB - 512, [(11 * MIB - 512, True), (MIB + 512, False)]),
    (4 * MIB, [(4 * MIB, True), (16 * MIB, False)]),
])
def test_a_large_block_is_split_if_more_than_1_mib_is_left(
    nbytes: int, blocks: list[tuple[int, bool]]
) -> None:
    allocator = CachingAllocator()
    allocator.allocate(nbytes)
    assert layout(allocator) == [blocks]


def test_an_unsplit_tail_is_allocated_but_not_requested() -> None:
    allocator = CachingAllocator()
    allocator.allocate(11 * MIB)
    assert stat(allocator, "allocated_bytes.all.current") == 12 * MIB
    assert stat(allocator, "requested_bytes.all.current") == 11 * MIB


def test_best_fit_is_the_smallest_block_then_the_lowest_address() -> None:
    allocator = CachingAllocator()
    sizes = (40, 30, 30, 50)
    blocks = [allocator.allocate(n * MIB) for n in sizes]
    for block in reversed(blocks):
        allocator.free(block)
    assert allocator.allocate(29 * MIB).address == blocks[1].address
    assert allocator.allocate(29 * MIB).address == blocks[2].address
    assert allocator.allocate(29 * MIB).address == blocks[0].address
    assert allocator.allocate(29 * MIB).address == blocks[3].address
    assert stat(allocator, "num_device_alloc") == 4


def test_free_neighbours_merge_and_the_peak_of_split_bytes_stays() -> None:
    allocator = CachingAllocator()
    a, b, c = (allocator.allocate(512 * n) for n in (1, 2, 3))
    allocator.free(b)
    assert layout(allocator) == [
        [(512, True), (1024, False), (1536, True), (2 * MIB - 3072, False)]]
    assert stat(allocator, "inactive_split.all.current") == 2
    allocator.free(a)
    assert layout(allocator) == [[(1536, False), (1536, True), (2 * MIB - 3072, False)]]
    allocator.free(c)
    assert layout(allocator) == [[(2 * MIB, False)]]
    assert stat(allocator, "inactive_split_bytes.all.current") == 0
    assert stat(allocator, "inactive_split_bytes.all.peak") == 2 * MIB - 512
    assert stat(allocator, "inactive_split.all.freed") == 2


def test_streams_do_not_share_free_blocks() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(30 * MIB, stream=7)
    assert stat(allocator, "reserved_bytes.all.current") == 60 * MIB
    assert stat(allocator, "allocated_bytes.all.peak") == 30 * MIB


def test_a_block_used_on_another_stream_stays_active_until_the_next_look() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, 0)                   # its own stream does not count
    allocator.record_stream(block, 3)
    allocator.record_stream(block, 35)
    allocator.free(block)
    assert stat(allocator, "allocated_bytes.all.current") == 0
    assert stat(allocator, "active_bytes.all.current") == 30 * MIB
    assert stat(allocator, "requested_bytes.all.current") == 30 * MIB
    assert [b.state for s in allocator.segments() for b in s.blocks] == ["active_pending_free"]
    allocator.process_events()
    assert stat(allocator, "active_bytes.all.current") == 0
    assert allocator.allocate(30 * MIB).address == block.address


def test_the_peak_of_active_bytes_counts_what_waits() -> None:
    """Inside one allocation nothing waits: the allocator looks at events first."""
    allocator = CachingAllocator()
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, 3)
    allocator.free(block)
    allocator.allocate(30 * MIB)
    assert stat(allocator, "active_bytes.all.peak") == 30 * MIB
    assert stat(allocator, "active.all.allocated") == 2
    assert stat(allocator, "active.all.freed") == 1


def test_oversize_blocks_serve_only_requests_of_nearly_their_size() -> None:
    allocator = CachingAllocator(SPLIT_64)
    big = allocator.allocate(100 * MIB)
    assert stat(allocator, "oversize_allocations.current") == 1
    allocator.free(big)
    assert allocator.allocate(30 * MIB).address != big.address      # smaller than the limit
    assert allocator.allocate(80 * MIB).address != big.address      # 100 >= 80 + 20
    assert allocator.allocate(81 * MIB).address == big.address      # and it is not split
    assert stat(allocator, "oversize_segments.current") == 2
    assert stat(allocator, "allocated_bytes.all.current") == (30 + 80 + 100) * MIB


def test_out_of_memory_after_everything_cached_was_released() -> None:
    allocator = CachingAllocator(total_bytes=GIB, reserved_outside_bytes=100 * MIB)
    cached = allocator.allocate(500 * MIB)
    kept = allocator.allocate(11 * MIB)                 # of a segment of 12 MiB
    allocator.free(cached)
    allocator.allocate(600 * MIB)                       # only after the 500 MiB are released
    assert stat(allocator, "num_alloc_retries") == 1
    assert stat(allocator, "num_ooms") == 0
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(500 * MIB)
    figures = caught.value.figures
    assert figures.requested_bytes == 500 * MIB
    assert figures.free_bytes == (1024 - 100 - 12 - 600) * MIB
    assert figures.allocated_bytes == figures.reserved_bytes == 612 * MIB
    assert stat(allocator, "num_ooms") == 1
    assert stat(allocator, "num_sync_all_streams") == 2
    assert caught.value.problems[0].message == (
        "CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total capacity of 1024.00 "
        "MiB of which 312.00 MiB is free. Of the allocated memory 612.00 MiB is allocated by "
        "PyTorch, and 0 bytes is reserved by PyTorch but unallocated.")
    allocator.free(kept)


def test_out_of_memory_by_fragmentation_says_what_to_try() -> None:
    allocator = CachingAllocator(total_bytes=100 * MIB)
    columns = [allocator.allocate(4 * MIB) for _ in range(25)]      # five segments of 20 MiB
    for i, block in enumerate(columns):
        if i % 5:
            allocator.free(block)                                   # one block of each stays
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(40 * MIB)
    assert caught.value.figures.free_bytes == 0
    assert caught.value.figures.reserved_bytes == 100 * MIB
    assert caught.value.figures.allocated_bytes == 20 * MIB
    assert "expandable_segments:True" in caught.value.problems[0].hint


def test_with_a_split_limit_just_enough_oversize_blocks_are_released() -> None:
    allocator = CachingAllocator(SPLIT_64, total_bytes=GIB)
    blocks = [allocator.allocate(n * MIB) for n in (300, 200, 100, 400)]
    for block in blocks:
        allocator.free(block)
    allocator.allocate(250 * MIB)           # the 300 MiB block is too large, but enough if released
    assert stat(allocator, "reserved_bytes.all.current") == (1000 - 300 + 250) * MIB
    assert stat(allocator, "num_alloc_retries") == 0
    allocator.allocate(450 * MIB)           # none is large enough: 400 and 200, the largest first
    assert stat(allocator, "reserved_bytes.all.current") == (250 + 100 + 450) * MIB


def test_the_fraction_limits_what_is_reserved() -> None:
    settings = AllocatorSettings(per_process_memory_fraction=0.5)
    allocator = CachingAllocator(settings, total_bytes=GIB)
    allocator.allocate(512 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(1)
    assert caught.value.figures.free_bytes == 512 * MIB
    assert "512.00 MiB allowed; " in str(caught.value)


def test_garbage_collection_releases_blocks_of_at_least_average_age() -> None:
    settings = AllocatorSettings(
        per_process_memory_fraction=0.5, garbage_collection_threshold=0.5)
    allocator = CachingAllocator(settings, total_bytes=2000 * MIB)
    old = allocator.allocate(200 * MIB)                 # search 1
    young = allocator.allocate(300 * MIB)               # search 2
    allocator.free(old)                                 # filed at 2
    middle = allocator.allocate(100 * MIB)              # search 3 cuts it: not collectable
    allocator.free(middle)                              # merged and filed again at 3
    allocator.free(allocator.allocate(350 * MIB))       # search 4, filed at 4; 850 MiB reserved
    allocator.free(young)                               # filed at 4
    allocator.allocate(400 * MIB)                       # search 5: ages 2, 1, 1; average 4/3
    # 350 MiB above the threshold of 500: round one frees 200 (age 2), round two all of age 1
    assert stat(allocator, "reserved_bytes.all.current") == 400 * MIB
    assert stat(allocator, "num_device_free") == 3
    assert stat(allocator, "num_sync_all_streams") == 0


def test_without_a_limit_garbage_is_not_collected() -> None:
    """A fraction of 1.0 is no limit: the cache is emptied only when the device is full."""
    settings = AllocatorSettings(
        per_process_memory_fraction=1.0, garbage_collection_threshold=0.5)
    allocator = CachingAllocator(settings, total_bytes=1000 * MIB)
    kept = allocator.allocate(500 * MIB)
    allocator.free(allocator.allocate(300 * MIB))
    allocator.allocate(400 * MIB)
    assert stat(allocator, "num_alloc_retries") == 1
    allocator.free(kept)


def test_streams_are_looked_at_in_the_order_of_pytorchs_hash_table() -> None:
    """Slots of a stream: the top bits of (2^56 + id) x 11400714819323198485 mod 2^64."""
    table = StreamTable()
    order = []
    for stream in (0, 3, 35, 67, 99, 3):
        table.add(stream)
        order.append(list(table))
    assert order == [
        [0], [0, 3], [0, 35, 3], [0, 67, 35, 3], [0, 99, 67, 35, 3], [0, 99, 67, 35, 3]]


def test_expandable_segments_map_pages_as_needed() -> None:
    allocator = CachingAllocator(EXPANDABLE, total_bytes=GIB)
    first = allocator.allocate(30 * MIB)
    assert stat(allocator, "reserved_bytes.all.current") == 40 * MIB
    assert layout(allocator) == [[(30 * MIB, True), (10 * MIB, False)]]
    second = allocator.allocate(15 * MIB)               # grows by one page into the same range
    assert second.address == first.address + 30 * MIB
    assert stat(allocator, "reserved_bytes.all.current") == 60 * MIB
    assert stat(allocator, "segment.all.current") == 0
    assert stat(allocator, "inactive_split_bytes.all.current") == 0
    third = allocator.allocate(30 * MIB)                # 15 MiB are left: one more page
    assert third.address == second.address + 15 * MIB
    assert stat(allocator, "reserved_bytes.all.current") == 80 * MIB
    allocator.free(third)
    small = allocator.allocate(1)
    assert small.address > first.address + GIB          # the small pool has a range of its own
    assert stat(allocator, "reserved_bytes.small_pool.current") == 2 * MIB
    allocator.free(first)
    allocator.empty_cache()                             # 20 of the 30 MiB are whole pages
    assert stat(allocator, "reserved_bytes.large_pool.current") == 40 * MIB
    assert layout(allocator) == [
        [(10 * MIB, False), (15 * MIB, True), (15 * MIB, False)],
        [(512, True), (2 * MIB - 512, False)]]
    for block in (second, small):
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.segments() == []
    assert allocator.heap.device.used_bytes == 0


def test_best_fit_counts_what_a_block_can_grow_into() -> None:
    allocator = CachingAllocator(EXPANDABLE, total_bytes=GIB)
    first, second = allocator.allocate(20 * MIB), allocator.allocate(45 * MIB)
    allocator.free(first)
    assert layout(allocator) == [[(20 * MIB, False), (45 * MIB, True), (15 * MIB, False)]]
    # 15 MiB would do, but they are the end that can grow
    assert allocator.allocate(10 * MIB).address == first.address
    assert allocator.allocate(11 * MIB).address == second.address + 45 * MIB


def test_expandable_segments_fill_the_lowest_gap_first() -> None:
    allocator = CachingAllocator(EXPANDABLE, total_bytes=GIB)
    blocks = [allocator.allocate(40 * MIB) for _ in range(3)]
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert allocator.allocate(50 * MIB).address == blocks[2].address + 40 * MIB
    assert allocator.allocate(35 * MIB).address == blocks[1].address


def test_large_segment_size_is_the_page_and_the_segment_of_middle_sizes() -> None:
    for expandable in (False, True):
        settings = AllocatorSettings(
            expandable_segments=expandable, large_segment_size_bytes=32 * MIB)
        allocator = CachingAllocator(settings, total_bytes=GIB)
        allocator.allocate(5 * MIB)
        assert stat(allocator, "reserved_bytes.all.current") == 32 * MIB


def test_the_device_gives_whole_pages_of_2_mib() -> None:
    settings = AllocatorSettings(large_segment_size_bytes=21 * MIB)
    allocator = CachingAllocator(settings, total_bytes=GIB)
    block = allocator.allocate(5 * MIB)
    assert stat(allocator, "reserved_bytes.all.current") == 21 * MIB
    assert allocator.heap.device.free_bytes == (1024 - 22) * MIB
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.heap.device.free_bytes == GIB


def test_statistics_have_pytorchs_keys_and_add_up() -> None:
    stats = replay([(1, 0, 5 * MIB), (1, 1, 700), (-1, 0, 5 * MIB)]).memory_stats()
    assert len(stats) == 123
    assert list(stats) == sorted(stats)
    assert stats["max_split_size"] == -1
    assert stats["allocation.all.allocated"] == 2
    assert stats["allocation.all.freed"] == 1
    assert stats["allocated_bytes.large_pool.freed"] == 5 * MIB
    assert stats["segment.all.peak"] == 2
    for key in (k for k in stats if k.endswith(".current")):
        name = key.removesuffix(".current")
        assert stats[key] == stats[f"{name}.allocated"] - stats[f"{name}.freed"]


def test_peaks_start_again_at_the_current_values() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(20 * MIB)
    allocator.reset_peak_memory_stats()
    assert stat(allocator, "allocated_bytes.all.peak") == 20 * MIB
    assert stat(allocator, "active_bytes.all.peak") == 20 * MIB
    assert stat(allocator, "reserved_bytes.all.peak") == 30 * MIB


def test_peaks_that_start_again_while_a_block_waits() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, 3)
    allocator.free(block)
    allocator.reset_peak_memory_stats()
    assert stat(allocator, "allocated_bytes.all.peak") == 0
    assert stat(allocator, "active_bytes.all.peak") == 30 * MIB
    assert stat(allocator, "active.large_pool.peak") == 1


def test_history_has_pytorchs_actions() -> None:
    allocator = CachingAllocator(total_bytes=100 * MIB)
    history = allocator.record_history()
    block = allocator.allocate(12 * MIB, label="scores")
    allocator.record_stream(block, 3)
    allocator.free(block)
    with pytest.raises(OutOfMemory):
        allocator.allocate(101 * MIB, label="logits")
    assert [(e.action, e.size, e.label) for e in history] == [
        ("segment_alloc", 12 * MIB, "scores"),
        ("alloc", 12 * MIB, "scores"),
        ("free_requested", 12 * MIB, "scores"),
        ("free_completed", 12 * MIB, "scores"),
        ("segment_free", 12 * MIB, "logits"),
        ("oom", 101 * MIB, "logits"),
    ]
    assert history[-1].address == 100 * MIB             # the free bytes of the device


def test_replay_goes_on_and_leaves_empty_tensors_out() -> None:
    step = [(1, 0, 0), (1, 1, 30 * MIB), (-1, 0, 0), (-1, 1, 30 * MIB)]
    allocator = replay(step)
    assert replay(step, allocator=allocator) is allocator
    assert stat(allocator, "allocation.all.allocated") == 2
    assert stat(allocator, "num_device_alloc") == 1


def test_wrong_use_is_refused() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(1)
    allocator.free(block)
    with pytest.raises(InputError, match="freed twice"):
        allocator.free(block)
    with pytest.raises(InputError, match="cannot allocate 0 bytes"):
        allocator.allocate(0)
    with pytest.raises(InputError, match=r"allocation 3 .* is freed but not allocated"):
        replay([(-1, 3, 8)])


@pytest.mark.parametrize(("nbytes", "text"), [
    (0, "0 bytes"), (1024, "1024 bytes"), (1025, "1.00 KiB"), (MIB, "1024.00 KiB"),
    (GIB, "1024.00 MiB"), (GIB + GIB // 2, "1.50 GiB"), (2000 * GIB, "2000.00 GiB"),
])
def test_sizes_as_pytorch_prints_them(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
