"""Checkpoint per operator, as torchtitan's SelectiveAC: which outputs are kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from gpuledger.config.training import EveryK

KEPT_NAMES = (
    "addmm", "bmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_flash_attention_forward",
    "_efficient_attention_forward",
)


def contexts_of(recompute: str | EveryK) -> Callable[[], Any]:
    """`context_fn` of a block's checkpoint."""
    return per_op if recompute == "per_op" else noop_context_fn


@contextmanager
def offloading(offload: str) -> Iterator[None]:
    """Around a block's checkpoint: what it saves, its input, goes to pinned host memory.

    A checkpoint per operator keeps its outputs where they are, and PyTorch warns that this may change.
    """
    if offload == "none":
        yield
        return
    with warnings.catch_warnings(), torch.autograd.graph.save_on_cpu(pin_memory=True):
        warnings.filterwarnings("ignore", "A saved_tensors_hooks context", FutureWarning)
        yield


def per_op() -> Any:
    """Attention and products keep their output, but every second mm runs again."""
    aten: Any = torch.ops.aten
    kept = {getattr(aten, name).default for name in KEPT_NAMES}
    kept.add(torch.ops._c10d_functional.reduce_scatter_tensor.default)
    products = 0

    def policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        nonlocal products
        if operator is aten.mm.default:
            products += 1
            return CheckpointPolicy.MUST_SAVE if products % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return (CheckpointPolicy.MUST_SAVE if operator in kept
                else CheckpointPolicy.PREFER_RECOMPUTE)

    return create_selective_checkpoint_contexts(policy)
