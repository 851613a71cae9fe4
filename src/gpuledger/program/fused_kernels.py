"""gpuledger's fused kernels as operators: what each allocates, saves and returns to its inputs.

Read beside torch_runs/kernels/ (the kernels' Python side) and csrc/binding/ (what they allocate).
They know no autocast: what they read is cast before them, parameters without autocast's cache.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from . import operators as op
from .layout import Shape, Strides, elementwise
from .operators import LinearWeights, cast
from .program import Gradient, Moves, Op, Tape
from .reductions import sum_rows
from .sizes import Size, ceil_div, minimum, product, uniformly
from .tensor import Tensor

if TYPE_CHECKING:
    from .norm import NormWeights

PARTIAL_ROWS = 256          # of a sum over rows, at most: csrc/binding/binding.h partials_for


def partial_sums(rows: Size, columns: Size, sums: int = 1) -> Tensor:
    """fp32 scratch of `sums` sums over rows: as many partial rows on every device. [N1]"""
    shape = (sums, minimum(rows, PARTIAL_ROWS), columns)
    return Tensor("partial sums", shape, "float32", "scratch")


def cast_parameter(tape: Tape, weight: Tensor | None, dtype: str) -> Tensor | None:
    """weight.to(dtype), made anew in each call and held until the caller returns. [S2]"""
    if weight is None or weight.dtype == dtype:
        return weight
    y, dw = Tensor(f"{weight.name}.{dtype}", weight.shape, dtype, "weight_copy"), weight.gradient()
    tape.append(Op("cast", (weight,), (y,), backward=(+dw,), gradients={weight: dw}, equation="S2"))
    tape.hold(y)
    return y


# ---- norms
def norm(tape: Tape, weights: NormWeights, x: Tensor) -> Tensor:
    """(..., width) -> the same shape and dtype, over the last dim. [N2]"""
    return norm_kernel(tape, weights, x, None)[0]


def add_norm(tape: Tape, weights: NormWeights, x: Tensor,
             residual: Tensor) -> tuple[Tensor, Tensor]:
    """(norm(h), h) of h = x + residual; x is cast to the residual stream's dtype first. [N3]"""
    with tape.part(weights.name, x, residual):
        wide = cast(tape, x, residual.dtype)
        tape.hold(wide)
        return norm_kernel(tape, weights, wide, residual)


def norm_kernel(tape: Tape, weights: NormWeights, x: Tensor,
                residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """(y, h), where h is x or the sum. Keeps h and fp32 statistics per row. [N2] [N3]

    A sum is an output, and both summands receive one gradient. Strided x and gradients are copied.
    """
    name, weight, bias = weights.name, weights.weight, weights.bias
    rows, columns = product(x.shape[:-1]), x.shape[-1]
    h = x if residual is None else Tensor(f"{name} sum", x.shape, x.dtype)
    y, dx, dw = Tensor(name, x.shape, x.dtype), x.gradient(), weight.gradient()
    statistics = tuple(Tensor(f"{name} {kind}", (rows,), "float32")
                       for kind in (("mean", "rstd") if weights.kind == "layernorm" else ("rstd",)))
    copy, dy_copy = Tensor(f"{x.name} copy", x.shape, x.dtype), y.like(f"d({name}) copy")
    copied, given_back = ((), ()) if x.strides is None else ((+copy,), (-copy,))
    gradients: dict[Tensor, Gradient] = {x: dx, weight: dw}
    if residual is not None:
        gradients = {x: dx, residual: dx, weight: dw}
    d_bias: Moves = ()
    if bias is not None:
        gradients[bias] = db = bias.gradient()
        d_bias = (+db,)
    partial = partial_sums(rows, columns, 1 if bias is None else 2)

    def backward(strides: Strides) -> Moves:
        dense, freed = ((), ()) if strides is None else ((+dy_copy,), (-dy_copy,))
        return *copied, *dense, +dx, +dw, *d_bias, +partial, -partial, *freed, *given_back

    outputs = (y, *statistics) if residual is None else (y, h, *statistics)
    tape.append(Op(name, tuple(gradients), outputs, saves=(h, *statistics), backward=backward,
                   forward=(*copied, *(+t for t in outputs), *given_back), gradients=gradients,
                   shares=() if residual is None else (dx,),
                   equation="N2" if residual is None else "N3"))
    return y, h


# ---- activations
def bias_gelu_linear(tape: Tape, x: Tensor, bias: Tensor | None, down: LinearWeights) -> Tensor:
    """gelu(x + bias) W^T + c. x: (b, s, f), the up-projection without its bias. [N4]

    Keeps x; backward forms the activation again for dW, then its gradient.
    """
    with tape.part("gelu and down", x):
        bias = cast_parameter(tape, bias, x.dtype)
        cast_down = LinearWeights(down.name, _cast(tape, down.weight, x.dtype),
                                  cast_parameter(tape, down.offset, x.dtype))
        dx = x.gradient()
        after: Moves = (+dx,)
        gradients: dict[Tensor, Gradient] = {x: dx}
        if bias is not None:
            gradients[bias] = db = bias.gradient()
            partial = partial_sums(product(x.shape[:-1]), x.shape[-1])
            after = (+dx, +db, +partial, -partial)
        return activation_and_down(tape, cast_down, gradients, after, "N4")


def swiglu_linear(tape: Tape, gate: Tensor, up: Tensor, down: LinearWeights) -> Tensor:
    """(silu(gate) * up) W^T. gate, up: (b, s, f), perhaps halves of one tensor. Keeps both. [N5]"""
    with tape.part("swiglu and down", gate, up):
        weight = _cast(tape, down.weight, gate.dtype)
        d_gate, d_up = gate.gradient(), up.gradient()
        return activation_and_down(tape, LinearWeights(down.name, weight, None),
                                   {gate: d_gate, up: d_up}, (+d_gate, +d_up), "N5")


def activation_and_down(tape: Tape, down: LinearWeights, gradients: dict[Tensor, Gradient],
                        after: Moves, equation: str) -> Tensor:
    """An activation and the product that follows, as one node that keeps the activation's inputs.

    after: what the activation's own backward allocates.
    """
    inputs = tuple(gradients)
    x, weight, offset = inputs[0], down.weight, down.offset
    rows, (n, f) = product(x.shape[:-1]), weight.shape
    activated, again, d_activated = (Tensor(name, x.shape, x.dtype) for name in
                                     ("activation", "activation again", "d(activation)"))
    y, dw = Tensor(down.name, (*x.shape[:-1], n), x.dtype), weight.gradient()
    before: Moves = (+again, +dw, -again)
    gradients = gradients | {weight: dw}
    if offset is not None:
        gradients[offset] = dc = offset.gradient()
        partial, semaphores = sum_rows((rows, n), None, tape.device)
        before += (+dc, +partial, +semaphores, -semaphores, -partial)
    return tape.append(Op(down.name, tuple(gradients), (y,), saves=(*inputs, weight),
                          forward=(+activated, +y, -activated), gradients=gradients,
                          backward=(*before, +d_activated, *after, -d_activated),
                          product=True, moves_before_product=2, saves_when_done=True,
                          flops=2 * rows * n * f, backward_flops=4 * rows * n * f,
                          equation=equation))


def _cast(tape: Tape, weight: Tensor, dtype: str) -> Tensor:
    y = cast_parameter(tape, weight, dtype)
    assert y is not None
    return y


def swiglu(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up: keeps both; their gradients are contiguous. [N6]"""
    y, d_gate, d_up = Tensor("swiglu", gate.shape, gate.dtype), gate.gradient(), up.gradient()
    return tape.append(Op("swiglu", (gate, up), (y,), saves=(gate, up), saves_when_done=True,
                          backward=(+d_gate, +d_up), gradients={gate: d_gate, up: d_up},
                          equation="N6"))


# ---- losses
def cross_entropy(tape: Tape, logits: Tensor, *, mean: bool = True) -> Tensor:
    """(..., v) -> the loss in fp32. The logits become their own gradient. [N7]

    Backward scales it in place; in fp16 it divides by the number of targets, which is kept.
    """
    with tape.part("cross entropy", logits):
        rows = product(logits.shape[:-1])
        losses = Tensor("losses", (rows,), "float32", "scratch")
        loss = Tensor("loss", (), "float32")
        count = Tensor("number of targets", (1,), "int64", "constant")
        overwritten, d_logits = (logits.view(name, logits.shape)
                                 for name in ("overwritten logits", "d(logits)"))
        counts = (count,) if mean else ()
        kept = counts if logits.dtype == "float16" else ()
        return tape.append(Op("cross entropy", (logits,), (loss, overwritten, *counts),
                              saves=(overwritten, *kept),
                              forward=(*(+t for t in counts), +losses, +loss, -losses),
                              gradients={logits: d_logits}, shares=(d_logits,), equation="N7"))


def linear_cross_entropy(tape: Tape, head: Tensor, x: Tensor, chunks: int) -> Tensor:
    """The mean loss of x W^T, `chunks` pieces of logits one after the other. x: (b, s, h). [N8]

    Forward forms the gradients of x and of W, which are kept; backward scales them in place.
    """
    with tape.part("linear cross entropy", x):
        hidden = cast(tape, x, tape.precision.compute_dtype)
        tape.hold(hidden)
        weight = _cast(tape, head, hidden.dtype)
        rows, (v, h) = product(x.shape[:-1]), weight.shape
        count = Tensor("number of targets", (1,), "int64", "constant")
        losses = Tensor("losses", (rows,), "float32", "scratch")
        dx = Tensor("d(x) in forward", (rows, h), hidden.dtype)
        dw = Tensor(f"d({weight.name}) in forward", weight.shape, weight.dtype, "gradient")
        logits = Tensor("logits of a chunk", (ceil_div(rows, chunks), v), hidden.dtype, "scratch")
        loss = Tensor("loss", (), "float32")
        kept = (count,) if hidden.dtype == "float16" else ()
        return tape.append(Op(
            "linear cross entropy", (hidden, weight), (loss, count, dx, dw), saves=(dx, dw, *kept),
            forward=(+count, +losses, +dx, +dw, +logits, +loss, -logits, -losses),
            gradients={hidden: dx.view("dX", hidden.shape), weight: dw}, shares=(dx,),
            product=True, only_forward_product=True,
            flops=2 * rows * h * v, backward_flops=4 * rows * h * v, equation="N8"))


# ---- pointwise
def dropout(tape: Tape, name: str, x: Tensor) -> Tensor:
    """The mask follows from a seed: nothing is kept. What is strided is copied first. [N9]

    Without fused kernels, PyTorch's dropout. [S3]
    """
    if not tape.kernels.dropout:
        return op.dropout(tape, name, x)
    y, dx = Tensor(name, x.shape, x.dtype), x.gradient()
    copy, dy_copy = Tensor(f"{x.name} copy", x.shape, x.dtype), y.like(f"d({name}) copy")

    def backward(strides: Strides) -> Moves:
        return (+dx,) if strides is None else (+dy_copy, +dx, -dy_copy)

    forward = (+y,) if x.strides is None else (+copy, +y, -copy)
    return tape.append(Op(name, (x,), (y,), forward=forward, backward=backward, gradients={x: dx},
                          equation="N9"))


def rotate_in_place(tape: Tape, x: Tensor) -> Tensor:
    """Queries and keys inside x turn where they lie; the gradient is turned back out of place, from
    a copy where its last dim is not adjacent in memory. [N10]"""
    y, dx = x.view(f"{x.name} rotated", x.shape), x.gradient()
    dy_copy = x.like(f"d({y.name}) copy")

    def backward(strides: Strides) -> Moves:
        return (+dx,) if last_dim_adjacent(strides) else (+dy_copy, +dx, -dy_copy)

    def layout(shape: Shape, strides: Strides) -> Strides:
        return elementwise(shape, strides) if last_dim_adjacent(strides) else None

    return tape.append(Op(y.name, (x,), (y,), backward=backward, gradients={x: dx}, follows=(dx,),
                          layout=layout, equation="N10"))


def last_dim_adjacent(strides: Strides) -> bool:
    return strides is None or uniformly(strides[-1] == 1)
