"""The attention core softmax(Q K^T / sqrt(d)) V: written out, or one of PyTorch's kernels."""
from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.model import Model
from gpuledger.config.training import Attention, Training

from . import fused_kernels, views
from . import operators as op
from .fused_attention import fused
from .local import Local
from .math_attention import math_kernel
from .program import Tape
from .ring_attention import ring_attention
from .tensor import Tensor


@dataclass(frozen=True)
class Core:
    """What one layer's core needs to know. `window` is None where the causal mask sees no more."""

    kernel: Attention
    dropout: bool
    softcap: bool
    alibi: bool
    window: int | None
    recompute: bool

    @classmethod
    def of_layer(cls, model: Model, training: Training, layer: int) -> Core:
        """The window counts only if it is shorter than the sequence."""
        window = model.window(layer)
        narrow = window if window is not None and training.seq_len > window else None
        return cls(
            training.attention,
            model.attention_dropout > 0,
            model.attention_softcap is not None,
            model.positions == "alibi",
            narrow,
            training.recompute == "selective",
        )

    @property
    def masked(self) -> bool:
        """scaled_dot_product_attention is given a mask or a bias instead of is_causal."""
        return self.kernel != "flash" and (self.alibi or self.window is not None)


def core(tape: Tape, settings: Core, local: Local, heads: tuple[Tensor, ...]) -> Tensor:
    """Query, key and value (b, a, s, d) -> (b, a, s, d)."""
    kernels = {"eager": eager, "math": math_kernel}
    kernel = kernels.get(settings.kernel, fused)
    with tape.part("core", *heads, checkpoint=settings.recompute):
        if local.cp > 1:
            return ring_attention(tape, settings, local, heads)
        return kernel(tape, settings, *heads)


def eager(tape: Tape, settings: Core, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Every step a tensor (b, a, s, s) of its own."""
    transposed = views.transpose(tape, "key^T", key, -2, -1)
    scores = matmul(tape, "scores", query, transposed)
    scores = op.elementwise(tape, "scaled", scores)
    if settings.softcap:
        scores = softcap(tape, "scores", scores)
    if settings.alibi:
        bias = Tensor("alibi", scores.shape[1:], tape.precision.compute_dtype, "table")
        scores = op.add(tape, "scores + alibi", scores, bias)
    scores = op.elementwise(tape, "masked", scores)
    scores = op.softmax(tape, "softmax", scores)
    if settings.dropout:
        scores = fused_kernels.dropout(tape, "score dropout", scores)
    return matmul(tape, "scores V", scores, value)


def softcap(tape: Tape, name: str, x: Tensor) -> Tensor:
    """cap * tanh(x / cap): tanh keeps its output."""
    with tape.part(f"{name} softcap", x):
        y = op.elementwise(tape, f"{name} / cap", x)
        y = op.elementwise(tape, f"tanh {name}", y, saves="output")
        return op.elementwise(tape, f"cap * tanh {name}", y)


def matmul(tape: Tape, name: str, x: Tensor, y: Tensor) -> Tensor:
    """torch.matmul of (b, a, m, k) and (b, a, k, n): bmm folds b and a into one dim, by a copy
    where strides do not allow a view."""
    with tape.part(name, x, y):
        cast_x, cast_y = op.autocast(tape, x, y)
        assert cast_x is not None and cast_y is not None
        b, a, m, k = x.shape
        n = y.shape[-1]
        left = views.reshape(tape, f"{x.name} folded", cast_x, (b * a, m, k))
        right = views.reshape(tape, f"{y.name} folded", cast_y, (b * a, k, n))
        tape.hold(left, right)
        z = op.batched_matmul(tape, name, left, right)
        return views.reshape(tape, f"{name} unfolded", z, (b, a, m, n))
