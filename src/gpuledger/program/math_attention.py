"""PyTorch's math kernel: attention composed of elementary operators, in fp32 even for 16-bit
inputs."""
from __future__ import annotations

from typing import TYPE_CHECKING

from . import operators as op
from . import views
from .masks import bias_of_mask, causal_bias
from .program import Op, Tape
from .tensor import Tensor

if TYPE_CHECKING:
    from .attention_kernels import Core


def math_kernel(tape: Tape, settings: Core, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(b, a, s, d) x3 -> (b, a, s, d). Q and K are each scaled by d^-1/4 before the product. [S16]
    [F21]

    Ref: _scaled_dot_product_attention_math (ATen/native/transformers/attention.cpp).
    """
    cast_query, cast_key, cast_value = op.autocast(tape, query, key, value)
    assert cast_query is not None and cast_key is not None and cast_value is not None
    dtype, s = cast_query.dtype, cast_query.shape[-2]
    with tape.part("math attention", cast_query, cast_key, cast_value):
        if settings.window is not None:
            tape.hold(bias_of_mask(tape, s, dtype))
        q, k, v = (op.cast(tape, t, "float32") for t in (cast_query, cast_key, cast_value))
        tape.hold(q, k, v)
        q = op.elementwise(tape, "query * d^-1/4", q)
        tape.hold(q)
        if not settings.masked:
            tape.hold(causal_bias(tape, s, "float32"))
        scores = scaled_scores(tape, q, k)
        scores = safe_softmax(tape, scores)
        if settings.dropout:
            scores = op.dropout(tape, "score dropout", scores)
        tape.hold(scores)
        tape.hold(op.cast(tape, scores, dtype))          # the second result, which nobody reads
        y = matmul_fp32(tape, "scores V", scores, v)
        return op.cast(tape, y, dtype)


def scaled_scores(tape: Tape, q: Tensor, k: Tensor) -> Tensor:
    """Q (K d^-1/4)^T; the bias is added to it in place."""
    k = op.elementwise(tape, "key^T * d^-1/4", views.transpose(tape, "key^T", k, -2, -1))
    return matmul_fp32(tape, "scores", q, k)


def safe_softmax(tape: Tape, x: Tensor) -> Tensor:
    """Softmax over the last dim, with rows of -inf made 0: looks for such rows first. Keeps its
    output. [S16]

    Ref: _safe_softmax (ATen/native/transformers/attention.cpp).
    """
    y, dx, weighted = x.like("softmax"), x.gradient(), x.like("dY * Y")
    hidden = Tensor("x == -inf", x.shape, "bool", "scratch")
    rows = Tensor("hidden rows", (*x.shape[:-1], 1), "bool", "scratch")
    zero = Tensor("0", (), x.dtype, "scratch")
    return tape.append(Op("safe softmax", (x,), (y,), saves=(y,), gradients={x: dx}, equation="S16",
                          forward=(+y, +hidden, +rows, +zero, -hidden, -rows, -zero),
                          backward=(+dx, +weighted, -weighted)))


def matmul_fp32(tape: Tape, name: str, x: Tensor, y: Tensor) -> Tensor:
    """matmul outside autocast."""
    b, a, m, k = x.shape
    n = y.shape[-1]
    with tape.part(name, x, y):
        left = views.reshape(tape, f"{x.name} folded", x, (b * a, m, k))
        right = views.reshape(tape, f"{y.name} folded", y, (b * a, k, n))
        tape.hold(left, right)
        z = op.batched_matmul(tape, name, left, right)
        return views.reshape(tape, f"{name} unfolded", z, (b, a, m, n))
