"""Tensor parallelism by DTensor, in the plan of PyTorch's tutorials and torchtitan.

Where Megatron keeps its s / tp tokens and gathers them again, a DTensor linear keeps the gathered input
whole; gathering or scattering along the tokens, which is not dim 0, needs a concatenation beside the
collective's own buffer. Collectives are functional: an all-reduce writes a new tensor.
Ref: torch/distributed/_functional_collectives.py, torch/distributed/tensor/parallel/{style,loss}.py.
"""

from __future__ import annotations

from . import operators as op
from .local import Local
from .operators import LinearWeights
from .program import INCOMING, Op, Tape
from .tensor import Tensor


def whole_input(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """One input for all linears of a sublayer, as PrepareModuleInput makes it. [X7]"""
    whole = gather(tape, local, x) if local.sequence_parallel else replicate(tape, x)
    tape.hold(whole)
    return whole


def gather(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """(b, s / tp, h) -> (b, s, h): the collective's buffer, and the concatenation that stays. [X7]

    Backward reduces and scatters: a concatenation, and the output.
    """
    b, s, h = x.shape
    y, dx = Tensor(f"{x.name} gathered", (b, s * local.tp, h), x.dtype), x.gradient()
    received = Tensor("all-gather output", (local.tp * b, s, h), x.dtype)
    joined = Tensor("reduce-scatter input", y.shape, x.dtype)
    return tape.append(
        Op(
            "all-gather",
            (x,),
            (y,),
            forward=(+received, +y, -received),
            backward=(+joined, +dx, -joined),
            gradients={x: dx},
            equation="X7",
        )
    )


def replicate(tape: Tape, x: Tensor) -> Tensor:
    """x itself; backward sums the ranks' gradients into a new tensor. [X7]"""
    dx = x.gradient()
    y = x.view(f"{x.name} replicated", x.shape, x.strides)
    return tape.append(
        Op("replicate", (x,), (y,), backward=(+dx,), gradients={x: dx}, equation="X7")
    )


def row_linear(tape: Tape, local: Local, weights: LinearWeights, x: Tensor) -> Tensor:
    """(b, s, k / tp) -> the sum over ranks: a new tensor (b, s, n), or (b, s / tp, n). [X8]"""
    with tape.part("row parallel", x):
        y = op.linear(tape, weights, x)
        return sum_over_ranks(tape, local, y)


def sum_over_ranks(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """A new tensor, whole or scattered over the tokens. [X8]"""
    return scatter_sum(tape, local, x) if local.sequence_parallel else all_reduce(tape, x)


def all_reduce(tape: Tape, x: Tensor) -> Tensor:
    """A functional sum over ranks; its gradient is handed on. [X8]"""
    with tape.part("all-reduce", x):
        y = x.like(f"{x.name} reduced")
        return tape.append(Op("all-reduce", (x,), (y,), gradients={x: INCOMING}, equation="X8"))


def scatter_sum(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """(b, s, n) -> (b, s / tp, n) of the sum: concatenated by rank first; backward gathers. [X8]"""
    with tape.part("reduce-scatter", x):
        b, s, n = x.shape
        y, dx = Tensor(f"{x.name} scattered", (b, s // local.tp, n), x.dtype), x.gradient()
        joined = Tensor("reduce-scatter input", x.shape, x.dtype)
        received = Tensor("all-gather output", x.shape, x.dtype)
        return tape.append(
            Op(
                "reduce-scatter",
                (x,),
                (y,),
                forward=(+joined, +y, -joined),
                backward=(+received, +dx, -received),
                gradients={x: dx},
                dispatched="reduce_scatter",
                equation="X8",
            )
        )


def cross_entropy(tape: Tape, local: Local, logits: Tensor) -> Tensor:
    """loss_parallel: log-softmax over the local columns with sums over ranks; keeps its output. [X9]

    Forward has one temporary of its size (exp); backward the one-hot gradient, its copy scaled and the
    result.
    """
    rows = logits.shape[:-1]
    with tape.part("cross entropy", logits):
        log_probs, d_logits = logits.like("log_softmax"), logits.gradient()
        shifted, exponentials = logits.like("logits - max"), logits.like("exp")
        largest, total = (Tensor(name, (*rows, 1), logits.dtype) for name in ("max", "sum of exp"))
        tape.append(
            Op(
                "log_softmax",
                (logits,),
                (log_probs,),
                saves=(log_probs,),
                forward=(
                    +largest,
                    +shifted,
                    +exponentials,
                    +total,
                    -exponentials,
                    +log_probs,
                    -shifted,
                    -largest,
                    -total,
                ),
                backward=(+d_logits,),
                gradients={logits: d_logits},
                equation="X9",
            )
        )
        tape.hold(log_probs)
        loss, weight = Tensor("loss", (), logits.dtype), Tensor("total weight", (), logits.dtype)
        d_log_probs = log_probs.gradient()
        return tape.append(
            Op(
                "nll_loss",
                (log_probs,),
                (loss, weight),
                saves=(log_probs, weight),
                backward=(+d_log_probs,),
                gradients={log_probs: d_log_probs},
                equation="X9",
            )
        )
