"""Rotary position embedding. Backward rotates by minus the angle. [FK9]"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd

from gpuledger.torch_runs.kernels.shapes import register_shapes


def rotary(ops: Any, x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool = False) -> Tensor:
    """x rotated, in a new tensor. x: [batch, seq, heads, head_dim], any strides but the last.

    cosine, sine: [>= seq, pairs] float32 (float64 for float64), 2 * pairs <= head_dim; dims beyond
    2 * pairs pass through. Pairs are (i, i + pairs), or (2i, 2i + 1) if interleaved.
    """
    y: Tensor = ops.rotary(x, cosine, sine, interleaved, False)
    return y


def rotary_in_place(ops: Any, x: Tensor, cosine: Tensor, sine: Tensor,
                    interleaved: bool = False) -> Tensor:
    """x itself, rotated. For autograd an in-place operation like any other.

    So x must not be a leaf that needs a gradient, and if it is a view of another tensor, backward
    copies that tensor's gradient.
    """
    y: Tensor = _RotaryInPlace.apply(x, cosine, sine, ops, interleaved)
    return y


class _RotaryInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor, ops: Any,
                interleaved: bool) -> Tensor:
        ops.rotary_(x, cosine, sine, interleaved, False)
        ctx.mark_dirty(x)
        ctx.save_for_backward(cosine, sine)
        ctx.ops, ctx.interleaved = ops, interleaved
        return x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        # Out of place: the incoming gradient may belong to somebody else too.
        return ctx.ops.rotary(dy, *ctx.saved_tensors, ctx.interleaved, True), None, None, None, None


def _rotary_shape(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool,
                  conjugate: bool) -> Tensor:
    return torch.empty_like(x if x.stride(-1) == 1 else x.contiguous())


def _rotary_in_place_shape(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool,
                           conjugate: bool) -> None:
    return None


_SHAPES = {
    "rotary": _rotary_shape,
    "rotary_": _rotary_in_place_shape,
}


def register(namespace: str) -> None:
    """Shape and gradient rules."""
    ops = getattr(torch.ops, namespace)
    register_shapes(namespace, _SHAPES)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cosine, sine, ctx.interleaved, ctx.conjugate = inputs
        ctx.save_for_backward(cosine, sine)

    def gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx = ops.rotary(dy, *ctx.saved_tensors, ctx.interleaved, not ctx.conjugate)
        return dx, None, None, None, None

    register_autograd(f"{namespace}::rotary", gradients, setup_context=keep)
