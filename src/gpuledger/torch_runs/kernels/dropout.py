"""Dropout whose mask is a function of a seed: nothing is saved. [FK10]"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd
from torch.utils._python_dispatch import _disable_current_modes

from gpuledger.torch_runs.kernels.shapes import dense_like, register_shapes


def dropout(ops: Any, x: Tensor, probability: float, seed: int | None = None) -> Tensor:
    """x with elements zeroed with `probability`, the others divided by 1 - probability.

    Without a seed, one is drawn from torch's CPU generator: torch.manual_seed fixes it, and
    checkpointing, which restores that generator, recomputes the same mask.
    """
    y: Tensor = ops.dropout(x, probability, draw_seed() if seed is None else seed)
    return y


def draw_seed() -> int:
    """A seed in [0, 2^63 - 1) from torch's CPU generator."""
    with _disable_current_modes():          # the seed is a number, also for fake tensors
        return int(torch.randint(2**63 - 1, (), device="cpu"))


def _dropout_shape(x: Tensor, probability: float, seed: int) -> Tensor:
    return dense_like(x)


_SHAPES = {
    "dropout": _dropout_shape,
}


def register(namespace: str) -> None:
    """Shape and gradient rules."""
    ops = getattr(torch.ops, namespace)
    register_shapes(namespace, _SHAPES)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.probability, ctx.seed = inputs

    def gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return ops.dropout(dy, ctx.probability, ctx.seed), None, None

    register_autograd(f"{namespace}::dropout", gradients, setup_context=keep)
