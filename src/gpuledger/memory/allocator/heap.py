"""The state that all parts of the allocator share."""
from __future__ import annotations

from dataclasses import dataclass, field

from .blocks import Block
from .device import DeviceMemory
from .history import Action, TraceEntry
from .pools import Pool
from .settings import AllocatorSettings
from .statistics import Level, PoolUsage


@dataclass
class Heap:
    """Pools, segments, device and counters of one device's allocator.

    segment_heads: address of a segment -> its first block (for the ranges of expandable segments,
    the first block of the reserved addresses, mapped or not).
    history: None while it is not recorded.
    cause: what segments come and go for, for the history: the label of a request, or a call.
    """

    settings: AllocatorSettings
    device: DeviceMemory
    small: Pool = field(init=False)
    large: Pool = field(init=False)
    usage: PoolUsage = field(default_factory=PoolUsage)
    oversize_allocations: Level = field(default_factory=Level)
    oversize_segments: Level = field(default_factory=Level)
    num_alloc_retries: int = 0
    num_ooms: int = 0
    num_sync_all_streams: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0
    segment_heads: dict[int, Block] = field(default_factory=dict)
    history: list[TraceEntry] | None = None
    cause: str = ""

    def __post_init__(self) -> None:
        self.small = Pool(small=True, settings=self.settings)
        self.large = Pool(small=False, settings=self.settings)

    @property
    def reserved_bytes(self) -> int:
        """What the device has given to this allocator."""
        return self.usage.reserved_bytes.current

    @property
    def allowed_bytes(self) -> int | None:
        """The limit of the per-process fraction, of which 1.0 is none (measured). [A7]"""
        fraction = self.settings.per_process_memory_fraction
        return None if fraction == 1.0 else int(fraction * self.device.total_bytes)

    def reserve(self, pool: Pool, nbytes: int) -> None:
        """Count memory that the device gave (or, negative, took back)."""
        pool.usage.reserved_bytes.add(nbytes)
        self.usage.reserved_bytes.add(nbytes)
        if nbytes > 0:
            self.num_device_alloc += 1
        else:
            self.num_device_free += 1

    def count_segment(self, pool: Pool, size: int, change: int) -> None:
        """Count a segment of `size` bytes that came (change = 1) or went (-1)."""
        pool.usage.segments.add(change)
        self.usage.segments.add(change)
        if size >= self.settings.max_split_size_bytes:
            self.oversize_segments.add(change)

    def count_splits(self, pool: Pool, blocks: int, nbytes: int) -> None:
        """Count free blocks that lie beside others in a segment, and their bytes."""
        pool.usage.splits.add(blocks)
        pool.usage.split_bytes.add(nbytes)
        self.usage.splits.add(blocks)
        self.usage.split_bytes.add(nbytes)

    def reset_peaks(self) -> None:
        """Forget all earlier values in the peaks."""
        for usage in (self.usage, self.small.usage, self.large.usage):
            usage.reset_peaks()
        self.oversize_allocations.reset_peak()
        self.oversize_segments.reset_peak()

    def record(self, action: Action, block: Block, size: int, label: str) -> None:
        """Add an event about `block` to the history, if one is kept."""
        if self.history is not None:
            stream = block.free_list.stream
            self.history.append(TraceEntry(action, block.address, size, stream, label))
