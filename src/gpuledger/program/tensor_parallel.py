"""Tensor parallelism as Megatron writes it: linears split by columns or rows, a split vocabulary.

Between the two linears of a sublayer each rank works on its own heads or MLP columns. Without sequence
parallelism every rank holds the whole residual stream and sums are all-reduced in place. With it a rank
holds s / tp tokens: a column-parallel linear gathers them for its product, keeps only its own s / tp for
backward and gathers again there; a row-parallel one scatters its sum. With tp = 1 all of them are
PyTorch's own operators. Ref: Shoeybi et al. 1909.08053; Korthikanti et al. 2205.05198;
Megatron-LM megatron/core/tensor_parallel/{layers,mappings,cross_entropy}.py.
"""

from __future__ import annotations

from . import dtensor_loss, dtensor_parallel
from . import operators as op
from .local import Local
from .losses import cross_entropy
from .operators import LinearWeights
from .program import INCOMING, Gradient, Moves, Op, Tape
from .reductions import sum_rows
from .sizes import Size, product
from .tensor import Tensor


def column_input(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """What the column-parallel linears of a sublayer read: x, or DTensor's one gathered input. [X7]"""
    if local.tp > 1 and local.style == "torch":
        return dtensor_parallel.whole_input(tape, local, x)
    return x


def column_linear(tape: Tape, local: Local, weights: LinearWeights, x: Tensor) -> Tensor:
    """(b, s, k) -> (b, s, n / tp): the input's gradient is summed over the ranks. [X2]

    With sequence parallelism x is (b, s / tp, k), and that is what backward keeps.
    """
    if local.tp == 1 or local.style == "torch":
        return op.linear(tape, weights, x)
    with tape.part(weights.name, x):
        cast_x, weight, offset = op.autocast(tape, x, weights.weight, weights.offset)
        assert cast_x is not None and weight is not None
        if not local.sequence_parallel:
            return op.product_with_weight(tape, weights.name, cast_x, weight, offset)
        return gathering_product(tape, local, LinearWeights(weights.name, weight, offset), cast_x)


def gathering_product(tape: Tape, local: Local, weights: LinearWeights, x: Tensor) -> Tensor:
    """Gather x, multiply; backward gathers again, and scatters the sum of dX. [X3]

    Ref: LinearWithGradAccumulationAndAsyncCommunication (tensor_parallel/layers.py).
    """
    b, s, k = x.shape
    n = weights.weight.shape[0]
    whole = (b, s * local.tp, k)
    rows = b * s * local.tp
    gathered, again = (Tensor("gathered x", whole, x.dtype) for _ in range(2))
    y = Tensor(weights.name, (b, s * local.tp, n), x.dtype)
    full_dx, dx, dw = (
        Tensor("d(gathered x)", whole, x.dtype),
        x.gradient(),
        weights.weight.gradient(),
    )
    gradients: dict[Tensor, Gradient] = {x: dx, weights.weight: dw.view("dW", weights.weight.shape)}
    reads = [x, weights.weight]
    reduce: Moves = ()
    if weights.offset is not None:
        db = weights.offset.gradient()
        partial, semaphores = sum_rows((rows, n), None, tape.device)
        reduce = (+db, +partial, +semaphores, -semaphores, -partial)
        gradients[weights.offset] = db
        reads.append(weights.offset)
    return tape.append(
        Op(
            weights.name,
            tuple(reads),
            (y,),
            saves=(x, weights.weight),
            forward=(+gathered, +y, -gathered),
            product=True,
            backward=(+again, +full_dx, +dx, +dw, -again, -full_dx),
            reduce=reduce,
            gradients=gradients,
            flops=2 * rows * k * n,
            backward_flops=4 * rows * k * n,
            equation="X3",
        )
    )


def row_linear(tape: Tape, local: Local, weights: LinearWeights, x: Tensor) -> Tensor:
    """(b, s, k / tp) -> the sum over ranks: (b, s, n), or (b, s / tp, n); then the bias. [X4]"""
    if local.tp == 1:
        return op.linear(tape, weights, x)
    if local.style == "torch":
        return dtensor_parallel.row_linear(tape, local, weights, x)
    with tape.part(weights.name, x):
        cast_x, weight, offset = op.autocast(tape, x, weights.weight, weights.offset)
        assert cast_x is not None and weight is not None
        y = op.product_with_weight(tape, weights.name, cast_x, weight, None)
        y = sum_over_ranks(tape, local, y)
        return y if offset is None else add_bias(tape, f"{weights.name} + bias", y, offset)


def sum_over_ranks(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """All-reduced (in place, by Megatron), or scattered over the tokens. [X4] [X8]"""
    if local.style == "torch":
        return dtensor_parallel.sum_over_ranks(tape, local, x)
    return scatter_sum(tape, local, x) if local.sequence_parallel else x


def scatter_sum(tape: Tape, local: Local, x: Tensor) -> Tensor:
    """Reduce-scatter over the tokens: (b, s, n) -> (b, s / tp, n); backward gathers. [X4]"""
    with tape.part("reduce-scatter", x):
        b, s, n = x.shape
        y, dx = Tensor(f"{x.name} scattered", (b, s // local.tp, n), x.dtype), x.gradient()
        return tape.append(
            Op("reduce-scatter", (x,), (y,), backward=(+dx,), gradients={x: dx}, equation="X4")
        )


def add_bias(tape: Tape, name: str, x: Tensor, offset: Tensor) -> Tensor:
    """x + c; the gradient of c is a sum over the rows. [X4]"""
    *outer, n = x.shape
    y, dc = x.like(name), offset.gradient()
    partial, semaphores = sum_rows((product(tuple(outer)), n), None, tape.device)
    return tape.append(
        Op(
            name,
            (x, offset),
            (y,),
            gradients={x: INCOMING, offset: dc},
            reduce=(+dc, +partial, +semaphores, -semaphores, -partial),
            equation="X4",
        )
    )


def vocabulary_embedding(
    tape: Tape, local: Local, weight: Tensor, shape: tuple[Size, ...], vocab_size: Size
) -> Tensor:
    """Rows that this rank has are looked up, the others set to zero, then summed over ranks. [X5]

    Keeps the shifted tokens and the mask. Ref: VocabParallelEmbedding (tensor_parallel/layers.py).
    """
    if local.tp == 1:
        return op.embedding(tape, "token", weight, shape)
    if local.style == "torch":
        return dtensor_parallel.vocabulary_embedding(tape, local, weight, shape, vocab_size)
    with tape.part("token"):
        mask, shifted = (
            Tensor("other ranks' tokens", shape, "bool"),
            Tensor("shifted tokens", shape, "int64"),
        )
        below, above = (Tensor(name, shape, "bool", "scratch") for name in ("below", "above"))
        copy = Tensor("tokens - start", shape, "int64", "scratch")
        tape.append(
            Op(
                "mask tokens",
                (),
                (mask, shifted),
                equation="X5",
                forward=(+below, +above, +mask, -below, -above, +copy, +shifted, -copy),
            )
        )
        tape.hold(mask, shifted)
        x = op.embedding(tape, "token", weight, shape, saves=(shifted, mask))
        return sum_over_ranks(tape, local, x)


def vocabulary_cross_entropy(tape: Tape, local: Local, logits: Tensor) -> Tensor:
    """The loss of logits (b, s, v / tp): one fp32 copy, everything after it in place. [X6]

    Keeps the softmax (that copy), the mask and the shifted targets; backward works in the softmax and
    casts it; fp32 logits are overwritten. Ref: _VocabParallelCrossEntropy (tensor_parallel/cross_entropy.py).
    """
    if local.tp == 1:
        return cross_entropy(tape, logits)
    if local.style == "torch":
        return dtensor_loss.cross_entropy(tape, logits)
    rows = logits.shape[:-1]
    with tape.part("cross entropy", logits):
        wide = op.cast(tape, logits, "float32") if logits.dtype != "float32" else logits
        mask, shifted = (
            Tensor("other ranks' targets", rows, "bool"),
            Tensor("shifted targets", rows, "int64"),
        )
        largest, picked, total = (
            Tensor(n, rows, "float32") for n in ("max", "picked logits", "sum of exp")
        )
        numbers = Tensor("row numbers", rows, "int64", "scratch")
        losses, loss = Tensor("losses", rows, "float32"), Tensor("loss", (), "float32")
        softmax = wide.view("softmax", wide.shape)
        tape.append(
            Op(
                "cross entropy",
                (wide,),
                (losses, softmax, mask, shifted),
                saves=(softmax, mask, shifted),
                forward=(
                    +largest,
                    +mask,
                    +shifted,
                    +numbers,
                    +picked,
                    -numbers,
                    +total,
                    +losses,
                    -picked,
                    -largest,
                    -total,
                ),
                gradients={wide: softmax},
                equation="X6",
            )
        )
        d_losses = losses.gradient()
        return tape.append(
            Op(
                "mean",
                (losses,),
                (loss,),
                backward=(+d_losses,),
                gradients={losses: d_losses},
                equation="X6",
            )
        )
