"""Workspaces of the memory-efficient attention: which tiles its backward works on, and what
follows.

Ref: ATen/native/transformers/cuda/mem_eff_attention (kernel_backward.h,
kernels/generate_kernels.py) and attention_backward.cu. The choice by shared memory was measured at
capability 7.5, 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0 (torch 2.14.1, head_dim 32 to 256, with and
without dropout).
"""
from __future__ import annotations

from dataclasses import dataclass

from .device import Device
from .sizes import Size, ceil_div, maximum, minimum, round_up, uniformly
from .tensor import Tensor, scratch

LOCK_BYTES = 16                      # beside each fp32 tile of dQ
MANY_BLOCKS = 256                    # heads x sequences from which on short keys are not split
BLOCKS = 200                         # splits x heads x sequences where splits need staging


@dataclass(frozen=True)
class Tile:
    """queries x keys of one block; staged: dK and dV of 16-bit inputs are summed in fp32 memory."""

    queries: int
    keys: int
    staged: bool = False


def tile_of(head_dim: Size, dtype: str, dropout: bool, device: Device) -> Tile:
    """The first kernel of PyTorch's list that takes the head_dim and fits into shared memory."""
    small = device.small_shared_memory or device.capability < (8, 0)
    if uniformly(head_dim <= 64):
        return Tile(64, 64)
    if dtype == "float32":
        return Tile(64, 64) if small else Tile(128, 64)
    if uniformly(head_dim > 128):
        return Tile(128, 64, staged=True)
    if not small:
        return Tile(128, 128)
    if device.capability < (8, 0):
        return Tile(128, 64)
    fits_96 = device.capability < (9, 0) and not dropout and uniformly(head_dim <= 96)
    return Tile(128, 64) if fits_96 else Tile(64, 64, staged=True)


def wide_output(query: Tensor) -> Tensor:
    """The output in fp32, where head_dim is too wide for registers and the output is in 16 bit.
    [K5]"""
    b, a, s, d = query.shape
    wide = 4 * b * a * s * d * (d > 128) if query.dtype != "float32" else 0
    return scratch("output fp32", wide)


def tiles_of_backward(query: Tensor, key: Tensor, dropout: bool, device: Device) -> Tensor:
    """fp32 tiles (with a lock) in which blocks of keys sum dQ, and staged dK and dV per split of
    the keys.

    query and key: (b, a, s, d). [K5]
    """
    b, a, s, d = query.shape
    tile = tile_of(d, query.dtype, dropout, device)
    tiles = ceil_div(s, tile.queries) * ceil_div(d, tile.keys)
    nbytes = tiles * (4 * tile.queries * tile.keys + LOCK_BYTES)
    if tile.staged:
        nbytes = nbytes + 2 * 4 * key_splits(b * a, key.shape[2], tile) * tile.keys * round_up(d, tile.queries)
    return scratch("dQ tiles", b * a * nbytes)


def key_splits(blocks: Size, s: Size, tile: Tile) -> Size:
    """Parts of the keys that are worked on at once, where each needs memory of its own."""
    splits = ceil_div(s, tile.keys)
    whole = (blocks >= MANY_BLOCKS) * (s <= 2 * tile.keys)
    return maximum(1, minimum(splits * (1 - whole) + whole, BLOCKS // blocks))
