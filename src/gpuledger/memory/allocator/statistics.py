"""The counters behind `torch.cuda.memory_stats()`.

Every key of PyTorch is one of nine quantities of one pool: its current value, its peak, and the
sums of its increases ("allocated") and decreases ("freed"). Only what cannot be derived is
counted: decreases are increases minus the current value, and "active" is "allocation" plus what
waits for events of other streams. Ref: c10/core/CachingDeviceAllocator.h (DeviceStats).
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from .settings import UNLIMITED_BYTES

if TYPE_CHECKING:
    from .heap import Heap


class Level:
    """One rarely changing quantity: current value, peak, and the sum of its increases."""

    __slots__ = ("current", "increases", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.increases = 0

    def add(self, amount: int) -> None:
        """Increase by `amount`, or decrease if it is negative."""
        self.current += amount
        if amount > 0:
            self.increases += amount
            if self.current > self.peak:
                self.peak = self.current

    def reset_peak(self) -> None:
        """Forget earlier values."""
        self.peak = self.current

    def as_dict(self) -> dict[str, int]:
        """PyTorch's four numbers."""
        return four_numbers(self.current, self.peak, self.increases)


class PoolUsage:
    """What is counted for one pool (or, `all`, for both): plain numbers, changed on every event."""

    __slots__ = (
        "active_bytes_peak", "active_peak",
        "allocated_bytes", "allocated_bytes_peak", "allocated_bytes_sum",
        "allocations", "allocations_peak", "allocations_sum",
        "requested_bytes", "requested_bytes_peak", "requested_bytes_sum",
        "reserved_bytes", "segments", "split_bytes", "splits", "waiting", "waiting_bytes",
    )

    def __init__(self) -> None:
        self.allocations = self.allocations_peak = self.allocations_sum = 0
        self.allocated_bytes = self.allocated_bytes_peak = self.allocated_bytes_sum = 0
        self.requested_bytes = self.requested_bytes_peak = self.requested_bytes_sum = 0
        self.waiting = self.waiting_bytes = 0           # freed, but other streams may still read
        # Active peaks are allocated peaks: nothing waits while memory is allocated. Only where
        # peaks were reset while something waited are they more.
        self.active_peak = self.active_bytes_peak = 0
        self.reserved_bytes, self.segments = Level(), Level()
        self.splits, self.split_bytes = Level(), Level()

    def take(self, size: int, requested: int) -> None:
        """A block of `size` bytes is handed out for a request of `requested` bytes."""
        self.allocations_sum += 1
        self.allocations += 1
        if self.allocations > self.allocations_peak:
            self.allocations_peak = self.allocations
        self.allocated_bytes_sum += size
        self.allocated_bytes += size
        if self.allocated_bytes > self.allocated_bytes_peak:
            self.allocated_bytes_peak = self.allocated_bytes
        self.requested_bytes_sum += requested
        self.requested_bytes += requested
        if self.requested_bytes > self.requested_bytes_peak:
            self.requested_bytes_peak = self.requested_bytes

    def give_back(self, size: int, requested: int) -> None:
        """The block is free again at once."""
        self.allocations -= 1
        self.allocated_bytes -= size
        self.requested_bytes -= requested

    def wait(self, size: int) -> None:
        """The program has given the block back, but other streams have events outstanding."""
        self.allocations -= 1
        self.allocated_bytes -= size
        self.waiting += 1
        self.waiting_bytes += size

    def stop_waiting(self, size: int, requested: int) -> None:
        """The last event of a waiting block is complete."""
        self.waiting -= 1
        self.waiting_bytes -= size
        self.requested_bytes -= requested

    def reset_peaks(self) -> None:
        """Forget earlier values: the peaks are the current values."""
        self.allocations_peak = self.allocations
        self.allocated_bytes_peak = self.allocated_bytes
        self.requested_bytes_peak = self.requested_bytes
        self.active_peak = self.allocations + self.waiting
        self.active_bytes_peak = self.allocated_bytes + self.waiting_bytes
        for level in (self.reserved_bytes, self.segments, self.splits, self.split_bytes):
            level.reset_peak()

    def quantities(self) -> dict[str, dict[str, int]]:
        """PyTorch's name of each of the nine quantities -> its four numbers."""
        allocated, count = self.allocated_bytes, self.allocations
        active_peak = max(self.active_peak, self.allocations_peak)
        active_bytes_peak = max(self.active_bytes_peak, self.allocated_bytes_peak)
        active, active_bytes = count + self.waiting, allocated + self.waiting_bytes
        return {
            "active": four_numbers(active, active_peak, self.allocations_sum),
            "active_bytes": four_numbers(
                active_bytes, active_bytes_peak, self.allocated_bytes_sum),
            "allocated_bytes": four_numbers(
                allocated, self.allocated_bytes_peak, self.allocated_bytes_sum),
            "allocation": four_numbers(count, self.allocations_peak, self.allocations_sum),
            "inactive_split": self.splits.as_dict(),
            "inactive_split_bytes": self.split_bytes.as_dict(),
            "requested_bytes": four_numbers(
                self.requested_bytes, self.requested_bytes_peak, self.requested_bytes_sum),
            "reserved_bytes": self.reserved_bytes.as_dict(),
            "segment": self.segments.as_dict(),
        }


def four_numbers(current: int, peak: int, increases: int) -> dict[str, int]:
    """`freed` is what was added and is no longer there."""
    return {"allocated": increases, "current": current, "freed": increases - current, "peak": peak}


def memory_stats(heap: Heap) -> dict[str, int]:
    """The 123 keys of `torch.cuda.memory_stats()`, sorted as PyTorch sorts them."""
    stats: dict[str, int] = {}
    for pool, usage in (
        ("all", heap.usage), ("small_pool", heap.small.usage), ("large_pool", heap.large.usage)
    ):
        for quantity, numbers in usage.quantities().items():
            stats.update({f"{quantity}.{pool}.{name}": n for name, n in numbers.items()})
    for quantity, level in (
        ("oversize_allocations", heap.oversize_allocations),
        ("oversize_segments", heap.oversize_segments),
    ):
        stats.update({f"{quantity}.{name}": n for name, n in level.as_dict().items()})
    limit = heap.settings.max_split_size_bytes
    stats.update(
        # PyTorch prints the unsigned 64-bit limit as a signed number
        max_split_size=limit if limit < 2**63 else limit - UNLIMITED_BYTES - 1,
        num_alloc_retries=heap.num_alloc_retries,
        num_device_alloc=heap.num_device_alloc,
        num_device_free=heap.num_device_free,
        num_oom_rejections=0,
        num_ooms=heap.num_ooms,
        num_sync_all_streams=heap.num_sync_all_streams,
    )
    return dict(sorted(stats.items()))
