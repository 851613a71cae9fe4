"""Scratch of PyTorch's reduction kernel: partial results and semaphores where several blocks share
an output.

A block has 512 / v threads, `width` of them along the dimension that is adjacent in memory and
`height` along the other; each takes v adjacent outputs. From 256 values per thread on, several
blocks work on one output and meet through global memory. Sizes may be arrays.
Ref: ATen/native/cuda/Reduce.cuh (setReduceConfig, ReduceConfig). [K1]
"""
from __future__ import annotations

from dataclasses import dataclass

from .device import Device
from .layout import Shape, Strides
from .sizes import Size, ceil_div, maximum, minimum, product, uniformly
from .tensor import Tensor, scratch

THREADS, WARP = 512, 32
FEW, MANY = 16, 256                 # values: blocks are added down to FEW per thread, from MANY on
VECTOR = 4                          # adjacent values that a thread loads at once
Scratch = tuple[Tensor, Tensor]


def power_of_two_below(n: Size, limit: Size) -> Size:
    """The largest power of two not above n, at most `limit` (a power of two up to 512)."""
    result: Size = 1
    for power in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        result = result + (n >= power) * (limit >= power) * (power // 2)
    return result


@dataclass(frozen=True)
class Block:
    """Threads of a block: along the dimension adjacent in memory, and along the other."""

    width: Size
    height: Size

    @classmethod
    def of(cls, adjacent: Size, other: Size, threads: Size) -> Block:
        """First a warp's width, then as high as it goes, then as wide as it goes."""
        widest = power_of_two_below(adjacent, threads)
        height = minimum(power_of_two_below(other, threads), threads // minimum(widest, WARP))
        return cls(minimum(widest, threads // height), height)

    @property
    def threads(self) -> Size:
        return self.width * self.height

    def splits(self, values_per_thread: Size) -> Size:
        """The block's height divides the values of one output, rather than outputs."""
        return values_per_thread >= minimum(self.height * FEW, MANY)


def reduce_all(n: Size, device: Device, itemsize: int = 4) -> Scratch:
    """n adjacent values to one, by norm, sum or mean; itemsize of the partial results."""
    block = Block.of(n // VECTOR * (n > 128) + n * (n <= 128), 1, THREADS)
    return shared(block, ceil_div(n, block.width), 1, itemsize, device)


def reduce_rows(rows: Size, columns: Size, device: Device) -> Scratch:
    """(rows, columns) to (rows): values of one output are adjacent."""
    block = Block.of(columns, rows, THREADS)
    splits = block.splits(ceil_div(columns, block.width))
    values = ceil_div(columns, block.width * block.height) * splits
    return shared(block, values, rows, 4 * rows, device)


def reduce_columns(rows: Size, columns: Size, device: Device) -> Scratch:
    """(rows, columns) to (columns), as every bias gradient: outputs are adjacent.

    A thread takes v = 4, 2 or 1 of them, as columns is a multiple of it.
    """
    v = VECTOR - 2 * (columns % 4 > 0) - (columns % 2 > 0)
    block = Block.of(columns // v, rows, THREADS // v)
    splits = block.splits(rows)
    values = ceil_div(rows, block.height) * splits
    grid = ceil_div(columns // v, block.width)
    return shared(block, values, grid, 4 * columns * v * block.width, device)


def sum_rows(shape: Shape, strides: Strides, device: Device) -> Scratch:
    """Scratch of summing (..., n) over all dimensions but the last, however it lies in memory."""
    *outer, n = shape
    rows = product(tuple(outer))
    if strides is None:
        return reduce_columns(rows, n, device)
    steps = [
        stride for size, stride in zip(outer, strides, strict=False) if not uniformly(size == 1)
    ]
    if any(uniformly(step < strides[-1]) for step in steps):
        return reduce_rows(n, rows, device)
    return reduce_columns(rows, n, device)


def shared(
    block: Block, values_per_thread: Size, grid: Size, nbytes: Size, device: Device
) -> Scratch:
    """(partial results, semaphores): `nbytes` of partial results per block that shares, or none."""
    resident = device.num_sms * (device.threads_per_sm // block.threads)
    blocks = maximum(minimum(ceil_div(resident, grid), ceil_div(values_per_thread, FEW)),
                     ceil_div(values_per_thread, MANY))
    share = (values_per_thread >= MANY) * (grid <= resident) * (blocks > 1)
    return scratch("partial results", share * nbytes * blocks), scratch(
        "semaphores", share * 4 * grid
    )
