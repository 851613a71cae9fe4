"""Allocation traces recorded on real GPUs, and the allocator in the state in which each begins.

A trace has events of the last part of a run and the segments at its end. The state at its start
follows by running the events backwards.
"""
from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

from gpuledger.memory.allocator import Block, CachingAllocator
from gpuledger.memory.allocator.device import DeviceMemory
from gpuledger.memory.allocator.pools import FreeList
from gpuledger.memory.allocator.sizes import (
    MIB,
    SMALL_ALLOCATION_BYTES,
    SMALL_SEGMENT_BYTES,
    block_bytes,
)


@dataclass
class Trace:
    """A recording, and what lived before its first event.

    events: (action, address, bytes). segments: address -> (bytes, small; None: not known).
    live: address -> requested bytes. blocks_at_end: (address, bytes, requested; 0 if free).
    """

    events: list[tuple[str, int, int]]
    segments: dict[int, tuple[int, bool | None]]
    live: dict[int, int]
    reserved_bytes_at_end: int
    allocated_bytes_at_end: int
    blocks_at_end: list[tuple[int, int, int]]


class RecordedDevice(DeviceMemory):
    """Hands out the addresses that the real device handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.next_segment: tuple[int, int] | None = None

    def allocate(self, nbytes: int) -> int | None:
        """The model asks for a segment exactly where the trace has one of this size."""
        assert self.next_segment is not None, f"a segment of {nbytes} bytes that was not recorded"
        address, recorded_bytes = self.next_segment
        assert nbytes == recorded_bytes
        self.next_segment = None
        return address


def read_trace(path: Path) -> Trace:
    """The events, and the segments and live blocks before the first of them."""
    recording = json.loads(gzip.decompress(path.read_bytes()))
    events = [(action, address, size) for action, address, size, *_ in recording["trace"]]
    segments: dict[int, tuple[int, bool | None]] = {
        s["address"]: (s["total_size"], s["segment_type"] == "small")
        for s in recording["segments"]}
    live = {address: requested for s in recording["segments"]
            for address, _, requested, state in s["blocks"] if state == "active_allocated"}
    for action, address, size in reversed(events):
        if action == "alloc":
            del live[address]
        elif action == "free_completed":
            live[address] = size
        elif action == "segment_alloc":
            del segments[address]
        elif action == "segment_free":              # its pool is not recorded
            segments[address] = (size, None if size == SMALL_SEGMENT_BYTES else False)
    return Trace(
        events, segments, live,
        sum(s["total_size"] for s in recording["segments"]),
        sum(s["allocated_size"] for s in recording["segments"]),
        sorted((address, size, requested * (state != "inactive"))
               for s in recording["segments"] for address, size, requested, state in s["blocks"]))


def allocator_before(trace: Trace) -> tuple[CachingAllocator, dict[int, Block]]:
    """The allocator in the state at the start of the trace, and its live blocks by address."""
    allocator = CachingAllocator()
    allocator.heap.device = RecordedDevice()
    allocated_later = sorted({address for action, address, _ in trace.events if action == "alloc"})
    addresses, blocks = sorted(trace.live), {}
    for start, (size, small) in trace.segments.items():
        end = start + size
        inside = addresses[bisect_left(addresses, start):bisect_left(addresses, end)]
        requests = [trace.live[address] for address in inside]
        if small is None:                           # a 2 MiB segment of either pool
            small = not requests or min(requests) <= SMALL_ALLOCATION_BYTES
        sizes = []
        for address, requested in zip(inside, requests, strict=True):
            limit = next((other for other in inside if other > address), end)
            block_end = address + block_bytes(requested)
            if not small:
                block_end = _with_tail(block_end, limit, allocated_later)
            sizes.append(block_end - address)
        pool = allocator.heap.small if small else allocator.heap.large
        head = Block(start, size, pool.free_list(0))
        _add_segment(allocator, head)
        for address, block_size, requested in zip(inside, sizes, requests, strict=True):
            blocks[address] = _take(allocator, head, address, block_size, requested)
        _file_free_blocks(allocator, head)
    return allocator, blocks


def _with_tail(block_end: int, limit: int, allocated_later: list[int]) -> int:
    """A large block keeps a rest of up to 1 MiB, which a recording of segments does not show.

    With the next live block that close, the rest is a tail for certain. In front of a free block,
    an address handed out later in the trace tells where the free block begins.
    """
    if limit - block_end <= MIB:
        return limit
    position = bisect_left(allocated_later, block_end)
    if position < len(allocated_later):
        address = allocated_later[position]
        if address <= block_end + MIB and address < limit:
            return address
    return block_end


def _add_segment(allocator: CachingAllocator, head: Block) -> None:
    heap, pool = allocator.heap, head.free_list.pool
    heap.segment_heads[head.address] = head
    heap.reserve(pool, head.size)
    heap.count_segment(pool, head.size, 1)


def _take(
    allocator: CachingAllocator, head: Block, address: int, size: int, requested: int
) -> Block:
    """Cut the block [address, address + size) out of the last, free block of its segment."""
    block = head
    while block.next is not None:
        block = block.next
    if address > block.address:
        block = block.cut(address - block.address)
    if size < block.size:
        block.cut(size)
    block.in_use = True
    block.requested_bytes = requested
    for usage in (block.free_list.pool.usage, allocator.heap.usage):
        usage.take(size, requested)
    return block


def _file_free_blocks(allocator: CachingAllocator, head: Block) -> None:
    free_list: FreeList = head.free_list
    block: Block | None = head
    while block is not None:
        if not block.in_use:
            free_list.add(block)
            if block.is_split:
                allocator.heap.count_splits(free_list.pool, 1, block.size)
        block = block.next
