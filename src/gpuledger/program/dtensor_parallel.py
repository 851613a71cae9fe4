"""Tensor parallelism by DTensor, in the plan of PyTorch's tutorials and torchtitan.

Where Megatron keeps its s / tp tokens and gathers them again, a DTensor linear keeps the gathered input
whole; gathering or scattering along the tokens, which is not dim 0, needs a concatenation beside the
collective's own buffer. Collectives are functional: an all-reduce writes a new tensor.
Ref: torch/distributed/_functional_collectives.py, torch/distributed/tensor/parallel/{style,loss}.py.
"""

from __future__ import annotations

from . import operators as op
from .dtensor_loss import masking
from .kernels import embedding_backward
from .local import Local
from .operators import LinearWeights
from .program import INCOMING, Moves, Op, Tape
from .sizes import Size, product, uniformly
from .tensor import Tensor


def whole_input(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """One input for all linears of a sublayer, as PrepareModuleInput makes it. [X7]"""
    whole = gather(tape, local, x) if local.sequence_parallel else replicate(tape, x)
    whole.dtensor = True
    tape.hold(whole)
    return whole


def gather(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """(b, s / tp, h) -> (b, s, h): the collective's buffer, and the concatenation that stays; of one
    sequence the buffer itself. [X7]

    Backward reduces and scatters: a concatenation, and the output.
    """
    b, s, h = x.shape
    y, dx = Tensor(f"{x.name} gathered", (b, s * local.tp, h), x.dtype), x.gradient()
    joined = Tensor("reduce-scatter input", y.shape, x.dtype)
    return tape.append(
        Op(
            "all-gather",
            (x,),
            (y,),
            forward=gathered(y),
            backward=(+joined, +dx, -joined),
            gradients={x: dx},
            equation="X7",
        )
    )


def gathered(y: Tensor) -> Moves:
    """A collective gathers along dim 0; of several sequences the ranks' tokens are then put together.

    Ref: torch/_utils.py _maybe_view_chunk_cat.
    """
    if uniformly(y.shape[0] == 1):
        return (+y,)
    received = Tensor("all-gather output", y.shape, y.dtype)
    return +received, +y, -received


def replicate(tape: Tape, x: Tensor) -> Tensor:
    """x itself; backward sums the ranks' gradients into a new tensor. [X7]"""
    dx = x.gradient()
    y = x.view(f"{x.name} replicated", x.shape, x.strides)
    return tape.append(
        Op("replicate", (x,), (y,), backward=(+dx,), gradients={x: dx}, equation="X7")
    )


def row_linear(tape: Tape, local: Local, weights: LinearWeights, x: Tensor) -> Tensor:
    """(b, s, k / tp) -> the sum over ranks: a new tensor (b, s, n), or (b, s / tp, n). [X8]

    Every rank adds its part of the bias, 1 / tp of it.
    """
    with tape.part("row parallel", x):
        y = partial_product(tape, weights, x)
        return sum_over_ranks(tape, local, y)


def partial_product(tape: Tape, weights: LinearWeights, x: Tensor) -> Tensor:
    """This rank's summand of the product, its part of the bias with it."""
    name = weights.name
    with tape.part(name, x):
        cast_x, weight, offset = op.autocast(tape, x, weights.weight, weights.offset)
        assert cast_x is not None and weight is not None
        if weights.offset is not None:
            weights.offset.replicated = True
        part = () if offset is None else (+Tensor("bias / tp", offset.shape, offset.dtype),)
        return op.product_with_weight(tape, name, cast_x, weight, offset, part)


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
        # an operator of its own: a checkpoint per operator keeps only the collective's output
        tape.append(Op("by rank", (x,), (joined,), gradients={x: INCOMING}, equation="X8"))
        return tape.append(
            Op(
                "reduce-scatter",
                (joined,),
                (y,),
                backward=gathered(dx),
                gradients={joined: dx},
                dispatched="reduce_scatter",
                equation="X8",
            )
        )


def vocabulary_embedding(
    tape: Tape, local: Local, weight: Tensor, shape: tuple[Size, ...], vocab_size: Size
) -> Tensor:
    """Rows of this rank, the others set to zero, then summed over ranks. [X20]

    The mask lives until the sum; the shifted tokens do not outlive the look-up. Its gradient is that of
    the whole vocabulary, formed on every rank: backward has the batch's own tokens.
    """
    with tape.part("token"):
        mask, shifted = Tensor("other ranks' tokens", shape, "bool"), Tensor("shifted tokens", shape, "int64")
        y = Tensor("token", (*shape, weight.shape[1]), weight.dtype)
        dw = Tensor("d(token.weight)", (vocab_size, weight.shape[1]), weight.dtype, "gradient")
        tape.whole_gradients[weight] = dw
        weight.dtensor = True
        x = tape.append(
            Op(
                "token",
                (weight,),
                (y,),
                forward=(*masking(mask, shifted, shape), +y, -shifted, -mask),
                backward=embedding_backward(dw, product(shape), tape.device),
                gradients={weight: dw},
                equation="X20",
            )
        )
        return sum_over_ranks(tape, local, x)
