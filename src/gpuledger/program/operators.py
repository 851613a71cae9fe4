"""PyTorch's operators, each once: what it allocates, saves and returns to its inputs.

Shapes stand beside the tensors: b sequences, s tokens, h hidden, a heads, d head_dim, k and n the
inner and outer width of a product. An elementwise result lies in memory as its operands do.
"""
from __future__ import annotations

from dataclasses import dataclass

from .kernels import embedding_backward
from .layout import Strides
from .layout import elementwise as elementwise_strides
from .program import INCOMING, Gradient, Moves, Op, Tape
from .reductions import sum_rows
from .sizes import Size, product
from .tensor import Move, Tensor


def elementwise(tape: Tape, name: str, x: Tensor, *, saves: str = "nothing") -> Tensor:
    """y = f(x). saves: "input" (GELU, SiLU), "output" (ReLU, tanh) or "nothing" (scale, sign,
    mask). [S1]"""
    y, dx = x.like(name, strides=elementwise_strides(x.shape, x.strides)), x.gradient()
    kept = {"input": (x,), "output": (y,), "nothing": ()}[saves]
    return tape.append(Op(name, (x,), (y,), saves=kept, backward=(+dx,), gradients={x: dx},
                          follows=(dx,), equation="S1"))


def square(tape: Tape, name: str, x: Tensor) -> Tensor:
    """y = x^2, as x.square() or x.pow(2): backward forms x^1, then 2 x, then the product. [S1]

    Autocast runs it in fp32.
    """
    if tape.precision.autocast and x.dtype != "float32":
        with tape.part(name, x):
            return square(tape, name, in_float32(tape, x))
    y, dx = x.like(name, strides=elementwise_strides(x.shape, x.strides)), x.gradient()
    power, twice = x.like(f"{x.name}^1"), x.like(f"2 {x.name}")
    return tape.append(Op(name, (x,), (y,), saves=(x,), gradients={x: dx}, equation="S1",
                          follows=(dx,), backward=(+power, +twice, +dx, -twice, -power)))


def cast(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """x.to(dtype). Autocast copies weights once per context and keeps them in its cache. [S2]"""
    if x.dtype == dtype:
        return x
    if x.parameter:
        return cast_weight(tape, x, dtype)
    y, dx = (
        x.like(f"{x.name}.{dtype}", dtype, elementwise_strides(x.shape, x.strides)),
        x.gradient(),
    )
    return tape.append(Op("cast", (x,), (y,), backward=(+dx,), gradients={x: dx}, follows=(dx,),
                          equation="S2"))


def in_float32(tape: Tape, x: Tensor) -> Tensor:
    """Autocast's cast of an argument to fp32; the operator holds it until it returns. [S2]"""
    y = cast(tape, x, "float32")
    if y is not x:
        tape.hold(y)
    return y


def cast_weight(tape: Tape, weight: Tensor, dtype: str) -> Tensor:
    """Autocast's copy of a weight; a second use in one context finds it in the cache, a recomputed
    part (a context of its own) makes it again. [S2]"""
    y = tape.weight_copies.get(weight)
    if y is not None:
        tape.append(Op("cached cast", (weight,), (y,), only_recomputed=True, equation="S2"))
    else:
        y = Tensor(f"{weight.name}.{dtype}", weight.shape, dtype, "weight_copy")
        tape.weight_copies[weight] = y
        dw = weight.gradient()
        tape.append(
            Op("cast", (weight,), (y,), backward=(+dw,), gradients={weight: dw}, equation="S2")
        )
    tape.hold_in_autocast_cache(y)
    return y


def autocast(tape: Tape, *tensors: Tensor | None) -> list[Tensor | None]:
    """Cast an operator's arguments, the last one first (the order in which C++ evaluates them)."""
    if not tape.precision.autocast:
        return list(tensors)
    dtype = tape.precision.compute_dtype
    casts = [t and cast(tape, t, dtype) for t in reversed(tensors)][::-1]
    tape.hold(*(t for t in casts if t is not None))      # until the operator returns
    return casts


def add(tape: Tape, name: str, x: Tensor, y: Tensor) -> Tensor:
    """x + y; the wider dtype wins. Both receive the incoming gradient, cast or summed where they
    differ."""
    wider = x if x.dtype == "float32" or y.dtype == x.dtype else y
    larger = x if len(x.shape) >= len(y.shape) else y
    reduce: tuple[Move, ...] = ()
    gradients: dict[Tensor, Gradient] = {}
    for t in (x, y):
        if not t.needs_grad:
            continue
        if t.dtype == wider.dtype and len(t.shape) == len(larger.shape):
            gradients[t] = INCOMING
            continue
        dt = t.gradient()
        gradients[t] = dt
        reduce += (+dt,)
    strides = None
    if len(x.shape) == len(y.shape):
        strides = elementwise_strides(larger.shape, x.strides, y.strides)
    z = Tensor(name, larger.shape, wider.dtype, strides=strides)
    return tape.append(Op(name, (x, y), (z,), reduce=reduce, gradients=gradients, equation="S1"))


def multiply(tape: Tape, name: str, x: Tensor, y: Tensor) -> Tensor:
    """x * y of one shape: each factor is kept for the other's gradient. [S1]"""
    strides = elementwise_strides(x.shape, x.strides, y.strides)
    z, dx, dy = x.like(name, strides=strides), x.gradient(), y.gradient()
    return tape.append(Op(name, (x, y), (z,), saves=(y, x), backward=(+dy, +dx),
                          gradients={y: dy, x: dx}, follows=(dy, dx), equation="S1"))


def multiply_by_table(tape: Tape, name: str, x: Tensor, table: Tensor) -> Tensor:
    """x * constant of a broadcast shape: only the constant is kept. A wider constant widens the
    result; its gradient is then cast back by the engine. [S1]"""
    wide = "float32" if "float32" in (x.dtype, table.dtype) else x.dtype
    z = x.like(name, wide, elementwise_strides(x.shape, x.strides))
    dx = Tensor(f"d({x.name})", x.shape, wide)
    if x.dtype == wide:
        return tape.append(Op(name, (x,), (z,), backward=(+dx,), gradients={x: dx}, follows=(dx,),
                              equation="S1"))
    narrow = x.gradient()
    return tape.append(Op(name, (x,), (z,), backward=(+dx,), reduce=(+narrow, -dx),
                          gradients={x: narrow}, follows=(dx, narrow), equation="S1"))


def dropout(tape: Tape, name: str, x: Tensor) -> Tensor:
    """Keeps the mask: bool, one byte an element; on a CPU scaled noise in the dtype of x. [S3]"""
    mask_dtype = "bool" if tape.device.kind == "cuda" else x.dtype
    mask, y, dx = Tensor(f"{name} mask", x.shape, mask_dtype), x.like(name), x.gradient()
    return tape.append(
        Op(
            name,
            (x,),
            (y, mask),
            saves=(mask,),
            forward=(+mask, +y),
            backward=(+dx,),
            gradients={x: dx},
            follows=(dx,),
            equation="S3",
        )
    )


def softmax(tape: Tape, name: str, x: Tensor) -> Tensor:
    """Over the last dim; keeps its output. Backward forms dY * Y beside dX. [S4]

    Autocast runs it in fp32: fp16 is read by the kernel as it is, bf16 is cast first.
    Ref: at::softmax (ATen/native/SoftMax.cpp), half_to_float.
    """
    with tape.part(name, x):
        if tape.precision.autocast and x.dtype == "bfloat16":
            x = cast(tape, x, "float32")
        y, dx = x.like(name, "float32" if tape.precision.autocast else x.dtype), x.gradient()
        weighted = y.like("dY * Y")
        return tape.append(Op(name, (x,), (y,), saves=(y,), gradients={x: dx}, equation="S4",
                              backward=(+dx, +weighted, -weighted)))


@dataclass(frozen=True)
class LinearWeights:
    """W: (n, k) and perhaps c: (n) of y = x W^T + c."""

    name: str
    weight: Tensor
    offset: Tensor | None

    @classmethod
    def of(cls, tape: Tape, name: str, k: Size, n: Size, *, bias: bool) -> LinearWeights:
        """New parameters, in the order of nn.Linear."""
        weight = tape.weight(f"{name}.weight", n, k)
        return cls(name, weight, tape.weight(f"{name}.bias", n) if bias else None)


def linear(tape: Tape, weights: LinearWeights, x: Tensor) -> Tensor:
    """y = x W^T + c.  x: (..., k), y: (..., n).  2 rows k n FLOPs, twice that backward. [S5] [F20]
    """
    name = weights.name
    with tape.part(name, x):
        cast_x, weight, offset = autocast(tape, x, weights.weight, weights.offset)
        assert cast_x is not None and weight is not None
        return product_with_weight(tape, name, cast_x, weight, offset)


def product_with_weight(tape: Tape, name: str, x: Tensor, weight: Tensor,
                        offset: Tensor | None, temporary: Moves = ()) -> Tensor:
    """aten::mm forms the weight's gradient first, aten::addmm the input's; the bias gradient is a
    sum over the rows by the engine. x is folded to (rows, k): before aten::addmm, so that the
    weight's gradient is handed on before x's; before aten::mm the weight is transposed first, then
    x folded. temporary: what is made of the bias first. [S5]
    """
    *outer, k = x.shape
    n = weight.shape[0]
    rows = product(tuple(outer))
    y, dx, dw = Tensor(name, (*outer, n), x.dtype), x.gradient(), weight.gradient()
    unfolded = dx if len(outer) == 1 else dx.view("dX", x.shape)
    transposed = dw.view("dW", weight.shape)
    flops, backward_flops = 2 * rows * k * n, 4 * rows * k * n
    folded = None if len(outer) == 1 else (rows, n)
    if offset is None:
        return tape.append(
            Op(
                name,
                (x, weight),
                (y,),
                saves=(weight, x),
                backward=(+dw, +dx),
                gradients={x: unfolded, weight: transposed},
                folded_output=folded,
                product=True,
                dispatched="mm",
                flops=flops,
                backward_flops=backward_flops,
                equation="S5",
            )
        )
    dc = offset.gradient()
    # at::sum_to drops the summed dimension by a view
    summed = dc.view("sum over rows", offset.shape)

    def bias_gradient(strides: Strides) -> Moves:
        partial, semaphores = sum_rows((rows, n), strides, tape.device)
        return +dc, +partial, +semaphores, -semaphores, -partial

    forward = (*temporary, +y, *(-move.tensor for move in temporary))
    return tape.append(Op(name, (x, weight, offset), (y,), saves=(x, weight), backward=(+dx, +dw),
                          forward=forward,
                          reduce=bias_gradient,
                          gradients={offset: summed, weight: transposed, x: unfolded} if folded else
                          {x: unfolded, offset: summed, weight: transposed}, folded_output=folded,
                          product=True, dispatched="addmm", flops=flops,
                          backward_flops=backward_flops, equation="S5"))


def embedding(tape: Tape, name: str, weight: Tensor, shape: tuple[Size, ...],
              saves: tuple[Tensor, ...] = ()) -> Tensor:
    """Rows of (v, h) -> (*shape, h); keeps the indices (the batch's own, or `saves`); the gradient
    is dense. [S6]"""
    y, dw = Tensor(name, (*shape, weight.shape[1]), weight.dtype), weight.gradient()
    return tape.append(
        Op(
            name,
            (weight,),
            (y,),
            saves=saves,
            backward=embedding_backward(dw, product(shape), tape.device),
            gradients={weight: dw},
            equation="S6",
        )
    )


def batched_matmul(tape: Tape, name: str, x: Tensor, y: Tensor) -> Tensor:
    """torch.bmm: (g, m, k) x (g, k, n) -> (g, m, n); the right factor's gradient comes first. [S10]
    [F21]"""
    g, m, k = x.shape
    n = y.shape[-1]
    z, dx, dy = Tensor(name, (g, m, n), x.dtype), x.gradient(), y.gradient()
    return tape.append(Op(name, (x, y), (z,), saves=(y, x), backward=(+dy, +dx),
                          gradients={y: dy, x: dx}, product=True, dispatched="bmm",
                          flops=2 * g * m * k * n, backward_flops=4 * g * m * k * n, equation="S10"))
