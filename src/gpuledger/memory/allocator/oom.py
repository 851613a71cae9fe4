"""What the allocator says when the device has no memory left."""
from __future__ import annotations

from dataclasses import dataclass

from gpuledger.errors import GpuledgerError


@dataclass(frozen=True)
class OutOfMemoryFigures:
    """The numbers of PyTorch's message, in bytes. allowed_bytes: None without a fraction."""

    requested_bytes: int
    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    allowed_bytes: int | None = None

    def message(self) -> str:
        """PyTorch's sentences (without what other processes hold, which is not modelled)."""
        unallocated = self.reserved_bytes - self.allocated_bytes
        allowed = "" if self.allowed_bytes is None else f"{size_text(self.allowed_bytes)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {size_text(self.requested_bytes)}. "
            f"GPU 0 has a total capacity of {size_text(self.total_bytes)} of which "
            f"{size_text(self.free_bytes)} is free. {allowed}Of the allocated memory "
            f"{size_text(self.allocated_bytes)} is allocated by PyTorch, and "
            f"{size_text(unallocated)} is reserved by PyTorch but unallocated."
        )


class OutOfMemory(GpuledgerError):  # noqa: N818 (what everybody calls it)
    """No memory for a request, after everything that is cached has been released."""

    def __init__(self, figures: OutOfMemoryFigures):
        self.figures = figures
        unallocated = figures.reserved_bytes - figures.allocated_bytes
        if unallocated >= figures.requested_bytes:
            hint = "the reserved but unallocated memory would do: try expandable_segments:True"
        else:
            hint = "lower the micro-batch size or sequence length, or shard or recompute more"
        super().__init__(figures.message(), hint)


def size_text(nbytes: int) -> str:
    """A size as PyTorch prints it: two decimals of the unit below which it would exceed 1024."""
    if nbytes <= 2**10:
        return f"{nbytes} bytes"
    for bits, unit in ((10, "KiB"), (20, "MiB")):
        if nbytes <= 2 ** (bits + 10):
            return f"{nbytes / 2**bits:.2f} {unit}"
    return f"{nbytes / 2**30:.2f} GiB"
