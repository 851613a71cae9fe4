"""gpuledger's fused kernels as the model calls them (program/fused_kernels.py is their account)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpuledger.torch_runs.kernels import activation, dropout, load, loss
from gpuledger.torch_runs.kernels import norm as norms


@cache
def fused_ops() -> Any:
    """The loaded library's operators. Raises InputError where it cannot be built."""
    return load()


def in_dtype_of(x: Tensor, weight: Tensor | None) -> Tensor | None:
    """The kernels know no autocast: a parameter is cast for each call."""
    return None if weight is None else weight.to(x.dtype)


class FusedNorm(nn.Module):
    """RMSNorm or LayerNorm: y, or with a residual (y, x + residual)."""

    def __init__(self, width: int, eps: float, *, centered: bool, bias: bool):
        super().__init__()
        self.eps, self.centered = eps, centered
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        ops = fused_ops()
        if residual is None:
            if self.centered:
                return norms.layer_norm(ops, x, self.weight, self.bias, self.eps)
            return norms.rms_norm(ops, x, self.weight, self.eps)
        x = x.to(residual.dtype)
        if self.centered:
            return norms.add_layer_norm(ops, x, residual, self.weight, self.bias, self.eps)
        return norms.add_rms_norm(ops, x, residual, self.weight, self.eps)


def bias_gelu_linear(x: Tensor, bias: Tensor | None, down: nn.Linear, *, tanh: bool) -> Tensor:
    """down(gelu(x + bias)): (b, s, f) -> (b, s, h)."""
    bias = in_dtype_of(x, bias)
    weight = down.weight.to(x.dtype)
    down_bias = in_dtype_of(x, down.bias)
    return activation.bias_gelu_linear(fused_ops(), x, bias, weight, down_bias, tanh)


def swiglu_linear(gate: Tensor, up: Tensor, down: nn.Linear) -> Tensor:
    """down(silu(gate) * up): (b, s, f) -> (b, s, h)."""
    weight = down.weight.to(gate.dtype)
    return activation.swiglu_linear(fused_ops(), gate, up, weight)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return activation.swiglu(fused_ops(), gate, up)


def cross_entropy(logits: Tensor, targets: Tensor, *, mean: bool) -> Tensor:
    """(..., v) and (...) -> a scalar. The logits are overwritten by their gradient."""
    return loss.cross_entropy(fused_ops(), logits, targets, mean=mean)


def linear_cross_entropy(output: nn.Linear, x: Tensor, targets: Tensor, chunks: int) -> Tensor:
    """(b, s, h) and (b, s) -> the mean loss; `chunks` pieces of logits, one after the other."""
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    hidden, weight = x.to(dtype), output.weight.to(dtype)
    chunk_rows = -(-targets.numel() // chunks)
    return loss.linear_cross_entropy(fused_ops(), hidden, weight, targets, chunk_rows=chunk_rows)


def drop(x: Tensor, probability: float, *, fused: bool) -> Tensor:
    """Dropout by seed, or PyTorch's, which keeps a mask."""
    return dropout.dropout(fused_ops(), x, probability) if fused else F.dropout(x, probability)


def rotate_in_place(x: Tensor, cos: Tensor, sin: Tensor, head_dim: int, heads: int) -> Tensor:
    """RoPE on the first `heads` heads of x, (b, s, n d) or (b, s, n, d), where they lie.

    Nobody else may read what x was: it is the output of a projection or of a norm.
    """
    rotated: Tensor = _RotateInPlace.apply(x, cos, sin, head_dim, heads)
    return rotated


class _RotateInPlace(torch.autograd.Function):
    """Not marked dirty: a projection's output is a view where it has a bias, and autograd would
    copy the gradient of that view's base.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, head_dim: int, heads: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.head_dim, ctx.heads = head_dim, heads
        fused_ops().rotary_(in_heads(x, head_dim)[:, :, :heads], cos, sin, False, False)
        return x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        turned = in_heads(dy, ctx.head_dim)
        if turned.size(2) == ctx.heads:
            dx = fused_ops().rotary(turned, cos, sin, False, True).view(dy.shape)
        else:
            dx = dy.clone()
            turned = in_heads(dx, ctx.head_dim)[:, :, : ctx.heads]
            fused_ops().rotary_(turned, cos, sin, False, True)
        return dx, None, None, None, None


def in_heads(x: Tensor, head_dim: int) -> Tensor:
    """(b, s, n d) or (b, s, n, d) -> (b, s, n, d), a view."""
    return x if x.dim() == 4 else x.unflatten(2, (-1, head_dim))


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """For FlopCounterMode, which does not see the products inside these operators.

    Each takes shapes: those of the arguments in order, and the results'. [F1]
    """
    ops = fused_ops()

    def gelu_forward(x: Any, bias: Any, down: Any, *_: Any, **__: Any) -> int:
        return 2 * prod(x) * int(down[0])

    def gelu_backward(dout: Any, x: Any, bias: Any, down: Any, *_: Any, **__: Any) -> int:
        return 4 * prod(x) * int(down[0])

    def swiglu_forward(gate: Any, up: Any, down: Any, *_: Any, **__: Any) -> int:
        return 2 * prod(gate) * int(down[0])

    def swiglu_backward(dout: Any, gate: Any, up: Any, down: Any, *_: Any, **__: Any) -> int:
        return 4 * prod(gate) * int(down[0])

    def loss_and_gradients(hidden: Any, weight: Any, *_: Any, **__: Any) -> int:
        return 6 * prod(hidden) * int(weight[0])

    return {ops.bias_gelu_linear: gelu_forward, ops.bias_gelu_linear_backward: gelu_backward,
            ops.swiglu_linear: swiglu_forward, ops.swiglu_linear_backward: swiglu_backward,
            ops.linear_cross_entropy: loss_and_gradients}
