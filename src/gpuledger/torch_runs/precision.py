"""Precision recipes: the dtype of weights, the dtype of products, and the autocast context."""

from __future__ import annotations

import torch

from gpuledger.config.training import Precision

WEIGHT_DTYPE: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16-mixed": torch.float32,
    "bf16-mixed": torch.float32,
    "bf16": torch.bfloat16,
    "bf16-master": torch.bfloat16,
}
AUTOCAST_DTYPE: dict[Precision, torch.dtype] = {
    "fp16-mixed": torch.float16,
    "bf16-mixed": torch.bfloat16,
}


def compute_dtype(precision: Precision) -> torch.dtype:
    """The dtype in which matrix products read their factors."""
    return AUTOCAST_DTYPE.get(precision, WEIGHT_DTYPE[precision])


def autocast(precision: Precision, device_type: str) -> torch.autocast:
    """The context of the forward pass; it does nothing where the recipe is not a mixed one."""
    dtype = AUTOCAST_DTYPE.get(precision)
    return torch.autocast(device_type, dtype or torch.bfloat16, enabled=dtype is not None)
