"""Sizes that PyTorch's caching allocator is built on, and the two roundings it makes. [A1] [A2]

Ref: c10/core/AllocatorConfig.h (constants), c10/cuda/CUDACachingAllocator.cpp (round_size,
roundup_power2_next_division, get_allocation_size), PyTorch 2.14.
"""
from __future__ import annotations

MIB = 2**20

MIN_BLOCK_BYTES = 512                   # kMinBlockSize: every block is a multiple of it
SMALL_ALLOCATION_BYTES = 1 * MIB        # kSmallSize: the largest request served by the small pool
SMALL_SEGMENT_BYTES = 2 * MIB           # kSmallBuffer: what the small pool asks the device for
LARGE_SEGMENT_BYTES = 20 * MIB          # kLargeBuffer, `large_segment_size_mb`
MIN_OWN_SEGMENT_BYTES = 10 * MIB        # kMinLargeAlloc: from here a request gets its own segment
OWN_SEGMENT_MULTIPLE_BYTES = 2 * MIB    # kRoundLarge
DEVICE_PAGE_BYTES = 2 * MIB             # granularity of cudaMalloc and of mapped memory

POWER2_INTERVALS = 16                   # 1 MiB, 2 MiB, ... 32 GiB and above
NO_DIVISIONS = (0,) * POWER2_INTERVALS
_FIRST_INTERVAL_LOG2 = 20               # 1 MiB


def round_up(nbytes: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `nbytes`."""
    return -(-nbytes // multiple) * multiple


def block_bytes(nbytes: int, divisions: tuple[int, ...] = NO_DIVISIONS) -> int:
    """Bytes of the block that serves a request of `nbytes` >= 1. [A1]

    A multiple of 512; or, with `roundup_power2_divisions`, the next of `d` equal steps between
    two powers of two, where `d` belongs to the interval (1 MiB, 2 MiB, ...) of the request.
    """
    if nbytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    steps = divisions[_interval(nbytes)]
    if steps > 1 and nbytes > MIN_BLOCK_BYTES * steps:
        return _next_power2_division(nbytes, steps)
    return round_up(nbytes, MIN_BLOCK_BYTES)


def segment_bytes(size: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """Bytes asked of the device for a block of `size` bytes that no free block can serve. [A2]"""
    if size <= SMALL_ALLOCATION_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return round_up(size, OWN_SEGMENT_MULTIPLE_BYTES)


def _interval(nbytes: int) -> int:
    log2 = nbytes.bit_length() - 1
    return min(max(log2 - _FIRST_INTERVAL_LOG2, 0), POWER2_INTERVALS - 1)


def _next_power2_division(nbytes: int, steps: int) -> int:
    """`nbytes` > 512 * `steps`, so that one step is at least 512 bytes."""
    power = 1 << (nbytes.bit_length() - 1)
    return round_up(nbytes, power // steps)
