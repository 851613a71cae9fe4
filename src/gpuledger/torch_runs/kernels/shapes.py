"""What the shape rules of several operators share."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake


def accumulator_dtype(x: Tensor) -> torch.dtype:
    """float32; float64 beside float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def dense_like(x: Tensor) -> Tensor:
    """An uninitialised contiguous tensor of x's shape and dtype."""
    return x.new_empty(x.shape)


def row_statistic(x: Tensor) -> Tensor:
    """One accumulator per row: [numel / last dim]."""
    cols = x.shape[-1]
    return x.new_empty(x.numel() // cols if cols else 0, dtype=accumulator_dtype(x))


def register_shapes(namespace: str, rules: Mapping[str, Callable[..., Any]]) -> None:
    """Registers what each operator returns, for fake and meta tensors."""
    for name, rule in rules.items():
        register_fake(f"{namespace}::{name}", rule)
