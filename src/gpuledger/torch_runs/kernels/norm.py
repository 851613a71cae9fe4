"""Residual add + RMSNorm and residual add + LayerNorm.

h = x + residual;  y = (h - mean) * rstd * weight + bias. Saved for backward: h, which is also an
output (the residual stream), and one (RMSNorm) or two (LayerNorm) accumulators per row. [FK1] [FK2]
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd

from gpuledger.torch_runs.kernels.shapes import dense_like, register_shapes, row_statistic


def rms_norm(ops: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """y, shaped like x: [..., cols]. weight: [cols], of x's dtype or float32."""
    y: Tensor = ops.rms_norm(x, weight, eps)[0]
    return y


def add_rms_norm(ops: Any, x: Tensor, residual: Tensor, weight: Tensor,
                 eps: float) -> tuple[Tensor, Tensor]:
    """(y, h) of the sum h = x + residual, both shaped like x."""
    y, h, _ = ops.add_rms_norm(x, residual, weight, eps)
    return y, h


def layer_norm(ops: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """y, shaped like x: [..., cols]. weight and bias: [cols], of x's dtype or float32."""
    y: Tensor = ops.layer_norm(x, weight, bias, eps)[0]
    return y


def add_layer_norm(ops: Any, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None,
                   eps: float) -> tuple[Tensor, Tensor]:
    """(y, h) of the sum h = x + residual, both shaped like x."""
    y, h, _, _ = ops.add_layer_norm(x, residual, weight, bias, eps)
    return y, h


def _rms_norm_shape(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    return dense_like(x), row_statistic(x)


def _add_rms_norm_shape(x: Tensor, residual: Tensor, weight: Tensor,
                        eps: float) -> tuple[Tensor, ...]:
    return dense_like(x), dense_like(x), row_statistic(x)


def _rms_norm_backward_shape(dy: Tensor, dh: Tensor | None, h: Tensor, weight: Tensor,
                             rstd: Tensor) -> tuple[Tensor, ...]:
    return dense_like(h), dense_like(weight)


def _layer_norm_shape(x: Tensor, weight: Tensor, bias: Tensor | None,
                      eps: float) -> tuple[Tensor, ...]:
    return dense_like(x), row_statistic(x), row_statistic(x)


def _add_layer_norm_shape(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None,
                          eps: float) -> tuple[Tensor, ...]:
    return dense_like(x), dense_like(x), row_statistic(x), row_statistic(x)


def _layer_norm_backward_shape(dy: Tensor, dh: Tensor | None, h: Tensor, weight: Tensor,
                               mean: Tensor, rstd: Tensor,
                               with_bias: bool) -> tuple[Tensor, ...]:
    return dense_like(h), dense_like(weight), weight.new_empty(len(weight) * with_bias)


_SHAPES: dict[str, Callable[..., Any]] = {
    "rms_norm": _rms_norm_shape,
    "add_rms_norm": _add_rms_norm_shape,
    "rms_norm_backward": _rms_norm_backward_shape,
    "layer_norm": _layer_norm_shape,
    "add_layer_norm": _add_layer_norm_shape,
    "layer_norm_backward": _layer_norm_backward_shape,
}


def register(namespace: str) -> None:
    """Shape and gradient rules of the six operators."""
    ops = getattr(torch.ops, namespace)
    register_shapes(namespace, _SHAPES)
    _register_rms_gradients(namespace, ops)
    _register_layer_gradients(namespace, ops)


def _save(ctx: Any, saved: tuple[Tensor, ...], statistics: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*saved, *statistics)
    ctx.mark_non_differentiable(*statistics)
    ctx.set_materialize_grads(False)        # else zeros are made for the statistics' gradients


def _register_rms_gradients(namespace: str, ops: Any) -> None:
    def keep_x(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _ = inputs
        _save(ctx, (x, weight), output[1:])

    def from_x(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None
        x, weight, rstd = ctx.saved_tensors
        return *ops.rms_norm_backward(dy, None, x, weight, rstd), None

    def keep_h(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _save(ctx, (output[1], inputs[2]), output[2:])

    def from_h(ctx: Any, dy: Tensor | None, dh: Tensor | None,
               _: None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return dh, dh, None, None
        h, weight, rstd = ctx.saved_tensors
        dx, dweight = ops.rms_norm_backward(dy, dh, h, weight, rstd)
        return dx, dx, dweight, None

    register_autograd(f"{namespace}::rms_norm", from_x, setup_context=keep_x)
    register_autograd(f"{namespace}::add_rms_norm", from_h, setup_context=keep_h)


def _register_layer_gradients(namespace: str, ops: Any) -> None:
    def keep_x(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, _ = inputs
        ctx.with_bias = bias is not None
        _save(ctx, (x, weight), output[1:])

    def gradients(ctx: Any, dy: Tensor, dh: Tensor | None) -> tuple[Tensor | None, ...]:
        dx, dweight, dbias = ops.layer_norm_backward(dy, dh, *ctx.saved_tensors, ctx.with_bias)
        return dx, dweight, dbias if ctx.with_bias else None

    def from_x(ctx: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None
        return *gradients(ctx, dy, None), None

    def keep_h(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.with_bias = inputs[3] is not None
        _save(ctx, (output[1], inputs[2]), output[2:])

    def from_h(ctx: Any, dy: Tensor | None, dh: Tensor | None,
               *_: None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return dh, dh, None, None, None
        dx, dweight, dbias = gradients(ctx, dy, dh)
        return dx, dx, dweight, dbias, None

    register_autograd(f"{namespace}::layer_norm", from_x, setup_context=keep_x)
    register_autograd(f"{namespace}::add_layer_norm", from_h, setup_context=keep_h)
