"""Device memory as the allocator sees it: what cudaMalloc hands out and when it says no."""
from __future__ import annotations

from .sizes import DEVICE_PAGE_BYTES, round_up

FIRST_ADDRESS = 0x7F00_0000_0000
UNBOUNDED_BYTES = 2**44                 # a device without a stated capacity: 16 TiB


class DeviceMemory:
    """Hands out pages of 2 MiB until `total_bytes` are used. Addresses only grow.

    reserved_outside_bytes: what the CUDA context, NCCL and other processes hold.
    """

    def __init__(self, total_bytes: int | None = None, reserved_outside_bytes: int = 0):
        self.total_bytes = UNBOUNDED_BYTES if total_bytes is None else total_bytes
        self.used_bytes = reserved_outside_bytes
        self._next_address = FIRST_ADDRESS

    @property
    def free_bytes(self) -> int:
        """What cudaMemGetInfo calls free."""
        return self.total_bytes - self.used_bytes

    def allocate(self, nbytes: int) -> int | None:
        """cudaMalloc: an address, or None when the memory is exhausted."""
        if not self.take(round_up(nbytes, DEVICE_PAGE_BYTES)):
            return None
        return self.reserve_addresses(nbytes)

    def release(self, nbytes: int) -> None:
        """cudaFree of `nbytes`."""
        self.used_bytes -= round_up(nbytes, DEVICE_PAGE_BYTES)

    def take(self, nbytes: int) -> bool:
        """Memory without an address (cuMemCreate); `nbytes` is a multiple of the page."""
        if nbytes > self.free_bytes:
            return False
        self.used_bytes += nbytes
        return True

    def reserve_addresses(self, nbytes: int) -> int:
        """Addresses without memory (cuMemAddressReserve)."""
        address = self._next_address
        self._next_address += round_up(nbytes, DEVICE_PAGE_BYTES)
        return address
