"""PyTorch's CUDACachingAllocator for one device, in Python and to the byte.

Ref: c10/cuda/CUDACachingAllocator.cpp (DeviceCachingAllocator), PyTorch 2.14; docs/allocator.md.
"""
from __future__ import annotations

from gpuledger.errors import InputError

from . import expandable, release
from .blocks import Block
from .device import DeviceMemory
from .events import PendingEvents, StreamTable
from .heap import Heap
from .history import TraceEntry
from .oom import OutOfMemory, OutOfMemoryFigures
from .pools import FreeList
from .segments import SegmentRecord, segment_records
from .settings import AllocatorSettings
from .sizes import (
    MIN_BLOCK_BYTES,
    NO_DIVISIONS,
    SMALL_ALLOCATION_BYTES,
    block_bytes,
    segment_bytes,
)
from .statistics import memory_stats

DEFAULT_SETTINGS = AllocatorSettings()


class CachingAllocator:
    """Hands out blocks of cached segments, and asks the device for a segment only on a miss.

    settings: the options of PYTORCH_CUDA_ALLOC_CONF.
    total_bytes: the device's memory; None: as much as is asked for.
    reserved_outside_bytes: device memory that others hold (CUDA context, NCCL, other processes).
    Streams are numbers, 0 the default one; with PyTorch's own `stream_id` the order in which it
    looks at several streams is reproduced too. Their events count as complete at the next look.
    """

    def __init__(
        self,
        settings: AllocatorSettings = DEFAULT_SETTINGS,
        total_bytes: int | None = None,
        reserved_outside_bytes: int = 0,
    ):
        self.heap = Heap(settings, DeviceMemory(total_bytes, reserved_outside_bytes))
        self._pending = PendingEvents()
        self._divisions = settings.roundup_power2_divisions
        self._rounds_to_512 = self._divisions == NO_DIVISIONS
        self._max_split_bytes = settings.max_split_size_bytes
        limited = self.heap.allowed_bytes is not None
        self._collects_garbage = limited and settings.garbage_collection_threshold > 0

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """A block of at least `nbytes` >= 1 bytes on `stream`; `label` names it in the history.

        Raises OutOfMemory when the device has no room even after releasing all cached segments.
        """
        if nbytes < 1:
            raise InputError(f"cannot allocate {nbytes} bytes", "leave empty tensors out")
        if self._pending:
            self.process_events()
        if self._rounds_to_512:
            size = -(-nbytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
        else:
            size = block_bytes(nbytes, self._divisions)
        heap = self.heap
        pool = heap.small if size <= SMALL_ALLOCATION_BYTES else heap.large
        free_list = pool.free_lists.get(stream) or pool.free_list(stream)
        if self._collects_garbage:
            pool.searches += 1
        block = free_list.take(size) or self._miss(free_list, size, label)
        self._split(block, size)
        block.in_use = True
        block.requested_bytes = nbytes
        block.label = label
        pool.usage.take(block.size, nbytes)
        heap.usage.take(block.size, nbytes)
        if block.size >= self._max_split_bytes:
            heap.oversize_allocations.add(1)
        if heap.history is not None:
            heap.record("alloc", block, nbytes, label)
        return block

    def free(self, block: Block) -> None:
        """Hand a block back. Other streams that used it keep it until their events complete.

        Raises InputError if the block is not handed out.
        """
        if not block.in_use or block.events:
            raise InputError(
                f"block at {block.address:#x} ({block.size} bytes) is freed twice",
                "free each block once",
            )
        heap = self.heap
        size, requested = block.size, block.requested_bytes
        pool = block.free_list.pool
        if size >= self._max_split_bytes:
            heap.oversize_allocations.add(-1)
        if heap.history is not None:
            heap.record("free_requested", block, requested, block.label)
        if block.streams:
            pool.usage.wait(size)
            heap.usage.wait(size)
            self._pending.add(block)
            return
        pool.usage.give_back(size, requested)
        heap.usage.give_back(size, requested)
        self._file(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that kernels on `stream` use the block (`Tensor.record_stream`)."""
        if stream == block.free_list.stream:
            return
        if block.streams is None:
            block.streams = StreamTable()
        block.streams.add(stream)

    def process_events(self) -> None:
        """Free the blocks whose events on other streams are complete: here, all of them."""
        for block in self._pending.complete():
            for usage in (block.free_list.pool.usage, self.heap.usage):
                usage.stop_waiting(block.size, block.requested_bytes)
            self._file(block)

    def empty_cache(self) -> None:
        """Give everything that is cached and free back to the device (`torch.cuda.empty_cache`)."""
        self.heap.cause = "empty_cache"
        self._release_cached()

    def memory_stats(self) -> dict[str, int]:
        """Every key of `torch.cuda.memory_stats()` with its value, in PyTorch's order."""
        return memory_stats(self.heap)

    def reset_peak_memory_stats(self) -> None:
        """Let all peaks start again at the current values, as `torch.cuda` does."""
        self.heap.reset_peaks()

    def segments(self) -> list[SegmentRecord]:
        """All segments with their blocks, by address."""
        return segment_records(self.heap)

    def record_history(self) -> list[TraceEntry]:
        """Keep every event from now on in the list that is returned (which grows)."""
        self.heap.history = []
        return self.heap.history

    def _split(self, block: Block, size: int) -> None:
        """Keep `size` bytes of a block that left its free list; file the rest if it is worth it."""
        free_list, was_split = block.free_list, block.is_split
        pool, rest = free_list.pool, block.size - size
        cut = rest >= pool.min_rest_bytes and size < pool.split_below_bytes
        if cut:
            free_list.add(block.cut(size))
        if block.segment is not None:           # PyTorch does not count those of expandable ones
            return
        if cut:
            self.heap.count_splits(pool, *((0, -size) if was_split else (1, rest)))
        elif was_split:
            self.heap.count_splits(pool, -1, -block.size)

    def _file(self, block: Block) -> None:
        """Merge a block with its free neighbours and put the result into the free list."""
        heap, free_list = self.heap, block.free_list
        if heap.history is not None:
            heap.record("free_completed", block, block.requested_bytes, block.label)
        block.in_use = False
        merged = merged_bytes = 0
        following, before = block.next, block.previous
        if following is not None and not following.in_use and following.mapped:
            free_list.remove(following)
            merged, merged_bytes = 1, following.size
            block.absorb_next()
        if before is not None and not before.in_use and before.mapped:
            free_list.remove(before)
            merged, merged_bytes = merged + 1, merged_bytes + before.size
            before.absorb_next()
            block = before
        free_list.add(block)
        if block.segment is not None:
            return
        if block.is_split:
            heap.count_splits(free_list.pool, 1 - merged, block.size - merged_bytes)
        elif merged:
            heap.count_splits(free_list.pool, -merged, -merged_bytes)

    def _miss(self, free_list: FreeList, size: int, label: str) -> Block:
        """A block that the device must provide, after releasing what is needed to get it."""
        heap = self.heap
        heap.cause = label
        allowed = heap.allowed_bytes
        if self._collects_garbage and allowed is not None:
            release.collect_garbage(heap, allowed)
        block = self._ask_device(free_list, size)
        if block is None and release.release_oversize(heap, free_list, size):
            block = self._ask_device(free_list, size)
        if block is None:
            self._release_cached()
            heap.num_alloc_retries += 1
            block = self._ask_device(free_list, size)
        if block is None:
            heap.num_ooms += 1
            raise OutOfMemory(self._out_of_memory(free_list, size))
        return block

    def _ask_device(self, free_list: FreeList, size: int) -> Block | None:
        heap, pool = self.heap, free_list.pool
        nbytes = segment_bytes(size, heap.settings.large_segment_size_bytes)
        allowed = heap.allowed_bytes
        if allowed is not None and heap.reserved_bytes + nbytes > allowed:
            return None
        if heap.settings.expandable_segments:
            return expandable.allocate(heap, free_list, size)
        address = heap.device.allocate(nbytes)
        if address is None:
            return None
        block = heap.segment_heads[address] = Block(address, nbytes, free_list)
        heap.reserve(pool, nbytes)
        heap.count_segment(pool, nbytes, 1)
        heap.record("segment_alloc", block, nbytes, heap.cause)
        return block

    def _release_cached(self) -> None:
        self.heap.num_sync_all_streams += 1
        self.process_events()
        release.release_cached(self.heap)

    def _out_of_memory(self, free_list: FreeList, size: int) -> OutOfMemoryFigures:
        heap = self.heap
        device = heap.device
        if heap.history is not None:
            stream = free_list.stream
            heap.history.append(TraceEntry("oom", device.free_bytes, size, stream, heap.cause))
        return OutOfMemoryFigures(
            requested_bytes=segment_bytes(size, heap.settings.large_segment_size_bytes),
            total_bytes=device.total_bytes,
            free_bytes=device.free_bytes,
            allocated_bytes=heap.usage.allocated_bytes,
            reserved_bytes=heap.reserved_bytes,
            allowed_bytes=heap.allowed_bytes,
        )
