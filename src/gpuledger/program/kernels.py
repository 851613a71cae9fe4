"""Scratch that CUDA kernels take and give back inside one call. One function per formula, ints or
arrays."""
from __future__ import annotations

from functools import lru_cache

from .device import Device
from .sizes import Size, ceil_div, each, minimum, round_up
from .tensor import Move, Tensor, scratch


def padded_head(d: Size) -> Size:
    """FlashAttention rounds head_dim up to 32, above 128 to 64."""
    return ceil_div(d, 32) * 32 * (d <= 128) + ceil_div(d, 64) * 64 * (d > 128)


def embedding_backward(d_weight: Tensor, tokens: Size, device: Device) -> tuple[Move, ...]:
    """Dense gradient (rows, width) of a lookup of `tokens` indices. [K2]

    Above 3072 indices they are sorted first, and runs of equal ones are summed in pieces of at most
    ten. Ref: ATen/native/cuda/EmbeddingBackwardKernel.cu. CUB's tile sizes: see `sort_tiles`.
    """
    if isinstance(tokens, int) and tokens <= 3072:
        return (+d_weight,)
    rows, width = d_weight.shape
    sort = tokens > 3072
    radix_tile, select_tile = sort_tiles(device)
    segments = minimum(tokens, rows)
    pieces = tokens // 10 + segments

    def take(name: str, nbytes: Size) -> Tensor:
        return scratch(name, sort * nbytes)

    def scan(items: Size, tile: int) -> Size:
        return 767 + 256 * ceil_div(8 * (32 + ceil_div(items, tile)), 256)

    ordered, original, positions = (
        take(n, 8 * tokens) for n in ("sorted", "original", "positions")
    )
    # over 8 bits of the index each
    passes = 1 + (rows >= 2**8) + (rows >= 2**16) + (rows >= 2**24)
    double_buffers = 2 * 256 * ceil_div(8 * tokens, 256) * (passes > 1)
    radix = take("radix sort",
                 double_buffers + 511 + 2048 * passes + 1024 * ceil_div(tokens, radix_tile))
    starts, number, unique = (
        take("starts", 8 * tokens),
        take("number", 8),
        take("unique", 8 * tokens),
    )
    select, prefix = (
        take("select", scan(tokens, select_tile)),
        take("prefix sum", scan(segments, 448)),
    )
    per_segment, offsets = take("pieces per segment", 8 * segments), take("offsets", 8 * segments)
    total, piece_starts = take("number of pieces", 8), take("piece starts", 8 * pieces)
    direct = few_segments(segments, pieces, width, device)
    # Few rows: pieces are added to them at once, in fp32, instead of one sum per piece.
    sums = take("sums per piece", (1 - direct) * 4 * pieces * width)
    rows_of_pieces = take("row of each piece", direct * 8 * pieces)
    wide = take("gradient fp32", direct * 4 * rows * width * (d_weight.dtype != "float32"))
    return (+ordered, +original, +positions, +radix, -radix, -positions, +d_weight,
            +starts, +number, +unique, +select, -select, -unique, +per_segment, +offsets,
            +prefix, -prefix, +total, +piece_starts, +sums, -sums, +rows_of_pieces, +wide, -wide,
            -rows_of_pieces, -piece_starts, -total,
            -offsets, -per_segment, -number, -starts, -original, -ordered)


def few_segments(segments: Size, pieces: Size, width: Size, device: Device) -> Size:
    """1 where blocks of one segment each would leave the GPU idle although there are many pieces.
    [K2]

    Measured: the limits of tokens, rows and width at 108, 132, 142 and 148 SMs (torch 2.14.1).
    """
    threads = round_up(width, 32)
    blocks = ceil_div(segments * threads, minimum(threads, 1024))
    return (blocks < 4 * device.num_sms) * (pieces > 4 * blocks) * 1


def sort_tiles(device: Device) -> tuple[int, int]:
    """Items per tile of CUB's radix sort and of its selection of unique indices. [K2]

    Measured: the numbers of indices at which temporary storage grows, at capability 7.5, 8.0, 8.6,
    8.9, 9.0 and 10.0 (torch 2.14.1). The scan's tile of 448 is the same in all.
    """
    if device.capability >= (9, 0):
        return 4608, 2464
    if device.capability >= (8, 0):
        return 3840, 672 if device.capability == (8, 0) else 160
    return 2816, 160


def flash_backward(b: Size, a: Size, s: Size, d: Size) -> tuple[Tensor, Tensor]:
    """(sum of dO * O per query, fp32 accumulator of dQ): queries padded to 128. [K3]

    Ref: ATen/native/transformers/cuda/flash_attn/flash_api.cpp (mha_bwd).
    """
    queries = ceil_div(s, 128) * 128
    return (scratch("dot(dO, O)", 4 * b * a * queries),
            scratch("dQ fp32", 4 * b * a * queries * padded_head(d)))


@lru_cache(maxsize=2**16)
def flash_splits(b: int, a: int, s: int, d: int, num_sms: int, keys: int) -> int:
    """Over how many parts of the keys the forward kernel splits when s queries alone leave the GPU
    idle. [K4]

    Ref: flash_api.cpp num_splits_heuristic: the fewest splits within 85 % of the best occupancy of
    2 x num_sms blocks. Ints only.
    """
    key_blocks = ceil_div(keys, 256 if d <= 64 else 128 if d <= 128 else 64)
    blocks, slots = b * a * ceil_div(s, 64), 2 * num_sms
    if blocks >= 0.8 * slots:
        return 1

    def useful(n: int) -> bool:
        return n == 1 or bool(ceil_div(key_blocks, n) != ceil_div(key_blocks, n - 1))

    def occupancy(n: int) -> float:
        return float(blocks * n / slots / ceil_div(blocks * n, slots))

    candidates = [n for n in range(1, min(128, slots, key_blocks) + 1) if useful(n)]
    best = max(occupancy(n) for n in candidates)
    return next(n for n in candidates if occupancy(n) >= 0.85 * best)


def flash_forward(query: Tensor, key: Tensor, device: Device) -> tuple[Tensor, Tensor]:
    """(logsumexp, output) per split, fp32; nothing when the kernel does not split. [K4]"""
    b, a, s, d = query.shape
    splits = each(flash_splits, b, a, s, d, device.num_sms, key.shape[2])
    rows = (splits > 1) * splits * b * a * s
    return (scratch("logsumexp per split", 4 * rows),
            scratch("output per split", 4 * rows * padded_head(d)))
