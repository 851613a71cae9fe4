"""torch.nn.functional.linear_cross_entropy in chunks: the gradients are formed in the forward pass.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .device import Device
from .operators import LinearWeights
from .program import Gradient, Op, Tape
from .reductions import reduce_all, reduce_columns, reduce_rows
from .sizes import Size, ceil_div, product
from .tensor import Move, Tensor


def fused_linear_cross_entropy(
    tape: Tape, weights: LinearWeights, x: Tensor, chunks: int
) -> Tensor:
    """x: (b, s, h) -> the loss. Keeps d x, d W (and d c) instead of any logits; it knows no
    autocast. [S13]

    Ref: torch/nn/modules/linear_cross_entropy.py (2.14), acc_policy "compact".
    """
    h = x.shape[-1]
    rows, v = product(x.shape[:-1]), weights.weight.shape[0]
    sizes = Sizes(rows, ceil_div(rows, chunks), h, v, x.dtype, weights.offset is not None)
    loss = Tensor("loss", (), x.dtype)
    parameters = [t for t in (weights.weight, weights.offset) if t is not None]
    dx = Tensor("d(x) in forward", (rows, h), x.dtype)
    d_parameters = [
        Tensor(f"d({t.name}) in forward", t.shape, t.dtype, "gradient") for t in parameters
    ]
    gradients: dict[Tensor, Gradient] = {x: dx.view("dX", x.shape)}
    gradients.update(zip(parameters, d_parameters, strict=True))
    forward = tuple(chunked_forward(sizes, loss, [dx, *d_parameters], tape.device))
    return tape.append(Op("linear_cross_entropy", (x, *parameters), (loss,), product=True,
                          only_forward_product=True,
                          saves=(dx, *d_parameters), forward=forward, gradients=gradients,
                          flops=2 * rows * h * v, backward_flops=4 * rows * h * v, equation="S13"))


@dataclass(frozen=True)
class Sizes:
    """x: (rows, h) of dtype, `chunk` rows at a time; W: (v, h). Logits are fp32."""

    rows: Size
    chunk: Size
    h: Size
    v: Size
    dtype: str
    biased: bool

    @property
    def widened(self) -> bool:
        """16-bit inputs are accumulated in fp32."""
        return self.dtype != "float32"

    def needs_scaled_input(self) -> bool:
        """x * w does not fit into the logits' memory: it has its own."""
        if self.widened:
            return bool(4 * self.v < 2 * self.h)
        return bool(self.v < self.h)

    def chunk_sizes(self) -> Iterator[Size]:
        for start in range(0, self.rows, self.chunk):
            yield min(self.chunk, self.rows - start)


class Slots:
    """Tensors of the loop that live until the next chunk's take their place."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}

    def replace(self, name: str, shape: tuple[Size, ...], dtype: str) -> Iterator[Move]:
        new = Tensor(name, shape, dtype, "scratch")
        yield +new
        if name in self.held:
            yield -self.held[name]
        self.held[name] = new


def scratch_of(*scratches: tuple[Tensor, Tensor]) -> Iterator[Move]:
    """Partial results and semaphores, taken and given back by one kernel after the other."""
    for partial, semaphores in scratches:
        yield from (+partial, +semaphores, -semaphores, -partial)


def temporary(name: str, shape: tuple[Size, ...], dtype: str) -> Tensor:
    return Tensor(name, shape, dtype, "scratch")


def chunked_forward(sizes: Sizes, loss: Tensor, gradients: list[Tensor],
                    device: Device) -> Iterator[Move]:
    """Buffers for one chunk, the loss and the gradients, weights of the rows, then chunk by chunk.
    """
    buffers = [temporary("logits", (sizes.chunk, sizes.v), "float32"),
               temporary("factors", (sizes.chunk,), "float32")]
    yield from (+t for t in buffers)
    yield +loss
    yield from (+t for t in gradients)
    rows = row_weights(sizes.rows, device)
    yield from rows.moves
    buffers += rows.kept
    if sizes.widened:
        buffers.append(temporary("chunk of x in fp32", (sizes.chunk, sizes.h), "float32"))
        yield +buffers[-1]
        if sizes.biased:
            buffers.append(temporary("bias in fp32", (sizes.v,), "float32"))
            yield +buffers[-1]
    slots = Slots()
    for n in sizes.chunk_sizes():
        yield from one_chunk(sizes, n, slots, device)
    yield from (-t for t in (*buffers, *slots.held.values()))


@dataclass(frozen=True)
class RowWeights:
    """Which rows count, their targets, and 1 / their number: what is kept of it."""

    moves: tuple[Move, ...]
    kept: tuple[Tensor, ...]


def row_weights(rows: Size, device: Device) -> RowWeights:
    """mask == ignored, targets with 0 for ignored ones, and -1 / count of the others."""
    mask, targets = temporary("mask", (rows,), "bool"), temporary("targets", (rows,), "int64")
    weights, inverse = (
        temporary("row weights", (rows,), "float32"),
        temporary("~mask", (rows,), "bool"),
    )
    zero, count = temporary("0", (), "int64"), temporary("count", (), "float32")
    empty, nan = temporary("count == 0", (), "bool"), temporary("nan", (), "float32")
    negative, divisor = temporary("-count", (), "float32"), temporary("divisor", (), "float32")
    moves = (+mask, +zero, +targets, -zero, +inverse, +weights, -inverse,
             +count, *scratch_of(reduce_all(rows, device)), +empty, +negative, +nan, +divisor,
             -nan, -empty, -negative, -divisor, -count)
    return RowWeights(moves, (mask, targets, weights))


def one_chunk(sizes: Sizes, n: Size, slots: Slots, device: Device) -> Iterator[Move]:
    """n rows: logits and their softmax in place, then the gradients of x, W and c."""
    rows_of = reduce_rows(n, sizes.v, device)
    picked, dot, log_dot = (
        temporary("picked logits", (n,), "float32"),
        temporary("dot", (), "float32"),
        temporary("dot of logs", (), "float32"),
    )
    yield from scratch_of(rows_of)
    yield from (+picked, +dot, -picked, -dot)
    yield from slots.replace("sums of exponentials", (n,), "float32")
    yield from scratch_of(rows_of)
    yield from (+log_dot, -log_dot)
    if sizes.biased:
        yield from bias_gradient(sizes, n, slots, device)
    if sizes.widened:
        yield from slots.replace("softmax in 16 bit", (n, sizes.v), sizes.dtype)
    rows_of_w, factors = (temporary("rows of W", (n, sizes.h), sizes.dtype),
                          temporary("row weights in 16 bit", (n,), sizes.dtype))
    yield from ((+rows_of_w, +factors, -rows_of_w, -factors) if sizes.widened
                else (+rows_of_w, -rows_of_w))
    if sizes.needs_scaled_input():
        yield from slots.replace("x * row weights", (n, sizes.h), sizes.dtype)
    if sizes.biased and sizes.widened:
        narrow = temporary("bias gradient in 16 bit", (sizes.v,), sizes.dtype)
        yield from (+narrow, -narrow)


def bias_gradient(sizes: Sizes, n: Size, slots: Slots, device: Device) -> Iterator[Move]:
    """The chunk's column sums, in fp32; of 16-bit inputs they are collected in fp32."""
    sums = temporary("column sums", (sizes.v,), "float32")
    if sizes.widened and "bias gradient" not in slots.held:
        yield from slots.replace("bias gradient", (sizes.v,), "float32")
    yield +sums
    yield from scratch_of(reduce_columns(n, sizes.v, device))
    yield -sums
