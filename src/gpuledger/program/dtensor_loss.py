"""The loss on logits that DTensor divides by columns: PyTorch's loss_parallel, kernel by kernel. [X9]

Ref: torch/distributed/tensor/parallel/loss.py, placement_types.py (_MaskPartial).
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import operators as op
from .device import Device
from .program import INCOMING, Moves, Op, Tape
from .reductions import Scratch, reduce_all, reduce_rows
from .sizes import Size, product
from .tensor import Move, Tensor


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """logits (b, s, v / tp) -> a scalar. Keeps log-probabilities (and under autocast their fp32 copy)."""
    with tape.part("cross entropy", logits):
        log_probs = log_softmax(tape, logits)
        tape.hold(log_probs)
        if tape.precision.autocast:
            log_probs = op.in_float32(tape, log_probs)
        rows, dtype = product(logits.shape[:-1]), log_probs.dtype
        loss, count = Tensor("loss", (), dtype), Tensor("total weight", (), dtype)
        losses = Losses(rows, dtype, tape.device)
        d_logits = log_probs.gradient()
        return tape.append(
            Op("nll_loss", (log_probs,), (loss, count), saves=(log_probs, count),
               forward=tuple(losses.forward(loss, count)),
               backward=tuple(losses.backward(log_probs, d_logits)),
               gradients={log_probs: d_logits}, equation="X9"))


def log_softmax(tape: Tape, logits: Tensor) -> Tensor:
    """In fp32, the maximum and the sum over all ranks; backward is the loss's. [X9]"""
    *outer, columns = logits.shape
    rows = product(tuple(outer))
    y = logits.like("log_softmax")
    wide, shifted, exponentials, result = (
        logits.like(name, "float32")
        for name in ("logits in fp32", "logits - max", "exp", "log_softmax in fp32"))
    largest, all_largest, total, all_total, log_total = (
        Tensor(name, (*outer, 1), "float32")
        for name in ("max", "max of all ranks", "sum of exp", "sum of all ranks", "log of sum"))
    narrow = logits.dtype != "float32"
    scratch = taken(reduce_rows(rows, columns, tape.device))
    result = result if narrow else y
    forward: Moves = (
        *((+wide,) if narrow else ()), +largest, *scratch, +all_largest, -largest, +shifted,
        +exponentials, +total, *scratch, -exponentials, +all_total, -total, +log_total, +result,
        *((+y, -wide, -result) if narrow else ()), -all_largest, -shifted, -all_total, -log_total)
    return tape.append(Op("log_softmax", (logits,), (y,), saves=(y,), forward=forward,
                          gradients={logits: INCOMING}, equation="X9"))


def taken(scratch: Scratch) -> Moves:
    """What a reduction takes beside its result."""
    partial, semaphores = scratch
    return +partial, +semaphores, -semaphores, -partial


@dataclass(frozen=True)
class Losses:
    """Temporaries of the loss of so many rows, in the dtype of the log-probabilities."""

    rows: Size
    dtype: str
    device: Device

    def per_row(self, name: str, dtype: str | None = None) -> Tensor:
        return Tensor(name, (self.rows,), dtype or self.dtype, "scratch")

    def scalar(self, name: str, dtype: str | None = None) -> Tensor:
        return Tensor(name, (), dtype or self.dtype, "scratch")

    def where(self, result: Tensor, dtype: str | None = None) -> Moves:
        """torch.where(targets != ignored, ..., 0)."""
        counted, zero = self.per_row("counted", "bool"), self.scalar("0", dtype)
        return +counted, +zero, +result, -counted, -zero

    def mask(self, mask: Tensor, shifted: Tensor) -> Moves:
        return masking(mask, shifted, mask.shape)

    def forward(self, loss: Tensor, count: Tensor) -> Iterator[Move]:
        """The targets' entries of this rank, summed over ranks, their mean."""
        targets, shifted = (self.per_row(name, "int64") for name in ("targets", "shifted targets"))
        mask, numbers = self.per_row("other ranks' targets", "bool"), self.scalar("number", "int64")
        picked, reduced, negative, losses = (
            self.per_row(name) for name in ("picked", "picked of all ranks", "negative", "losses"))
        counted, ones = self.per_row("counted", "bool"), self.per_row("counted in int64", "int64")
        total = self.scalar("sum of losses")
        yield from self.where(targets, "int64")
        yield from self.mask(mask, shifted)
        yield from (+picked, -mask, +reduced, +negative)
        yield from self.where(losses)
        yield from (-negative, +counted, +numbers, +ones)
        yield from taken(reduce_all(self.rows, self.device, 8))
        yield from (-counted, -ones, +count, -numbers, +total)
        yield from taken(reduce_all(self.rows, self.device))
        yield from (+loss, -targets, -shifted, -picked, -reduced, -losses, -total)

    def backward(self, log_probs: Tensor, d_logits: Tensor) -> Iterator[Move]:
        """(-1 at the targets + exp(log-probabilities)) * weights of rows."""
        targets, shifted, numbers = (
            self.per_row(name, "int64") for name in ("targets", "shifted targets", "row numbers"))
        mask, scaled = self.per_row("other ranks' targets", "bool"), self.scalar("d(loss) / count")
        mine, update, weights = (self.per_row(name) for name in ("mask", "mask - 1", "row weights"))
        one_hot, exponentials, total = (
            log_probs.like(name) for name in ("-1 at targets", "exp", "sum"))
        yield +scaled
        yield from self.where(targets, "int64")
        yield +one_hot
        yield from self.mask(mask, shifted)
        yield from (+mine, +update, -mine, +numbers)
        yield from self.where(weights)
        yield from (-scaled, +exponentials, +total, -exponentials, +d_logits, -targets, -one_hot,
                    -mask, -shifted, -update, -numbers, -weights, -total)


def masking(mask: Tensor, shifted: Tensor, shape: tuple[Size, ...]) -> Moves:
    """Tokens outside of this rank's rows or columns, and the others counted from its first."""
    below, above = (Tensor(name, shape, "bool", "scratch") for name in ("below", "above"))
    copy = Tensor("tokens - start", shape, "int64", "scratch")
    return +below, +above, +mask, -below, -above, +copy, +shifted, -copy
