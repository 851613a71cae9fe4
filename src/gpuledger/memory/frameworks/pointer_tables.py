"""Tables of addresses and sizes that PyTorch's fused copies of many tensors put on the GPU for a moment.

Ref: ATen/native/cuda/TensorShape.cu (split_with_sizes_copy_out_cuda_contiguous_no_cast,
get_chunk_cat_metadata, pack_vecs), PyTorch 2.14.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from gpuledger.program.device import Device
from gpuledger.program.sizes import Size, ceil_div
from gpuledger.program.tensor import Tensor, scratch

TILE_BYTES = 16 * 128                    # what a block of 128 threads copies at once
ENTRY_BYTES = 8


def copy_out_table(chunk_bytes: Sequence[Size], chunks: int, device: Device) -> Tensor:
    """split_with_sizes_copy of `chunks` rows into tensors that take chunk_bytes of each row. [W2]

    Two addresses and a size per tensor, the tensor of each block, and running sums of blocks.
    """
    most_blocks = device.num_sms * device.threads_per_sm // 128 * 2
    tiles = sum(ceil_div(nbytes, TILE_BYTES) for nbytes in chunk_bytes)
    factor = ceil_div(tiles * chunks, most_blocks)
    chunks_per_block = min(isqrt(factor - 1) + 1 if factor else 0, chunks)
    tile_bytes = TILE_BYTES * ceil_div(factor, chunks_per_block)
    blocks = sum(ceil_div(nbytes, tile_bytes) for nbytes in chunk_bytes)
    return table(4 * len(chunk_bytes) + 1 + blocks)


def chunk_cat_table(chunk_bytes: Sequence[Size]) -> Tensor:
    """_chunk_cat of tensors that give (padded) chunk_bytes to each row: six lists, blocks. [W3]"""
    blocks = sum(ceil_div(nbytes, TILE_BYTES) for nbytes in chunk_bytes)
    return table(6 * len(chunk_bytes) + 2 + blocks)


def table(entries: Size) -> Tensor:
    """So many 8-byte entries."""
    return scratch("pointer table", entries * ENTRY_BYTES)
