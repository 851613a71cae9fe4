"""LayerNorm; RMSNorm: PyTorch's, or composed as in Hugging Face's models; or gpuledger's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpuledger.config.model import Model
from gpuledger.config.training import Training

from .fused import FusedNorm

RMSNORM_EPS = 1e-6
LAYERNORM_EPS = 1e-5  # nn.LayerNorm's own


class ComposedRMSNorm(nn.Module):
    """weight * (x rsqrt(mean(x^2) + eps)), computed in fp32 and cast back."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + RMSNORM_EPS)
        return self.weight * x.to(dtype)


def norm(model: Model, training: Training, width: int | None = None) -> nn.Module:
    """The model's kind of norm over the last dim of `width` elements (default: hidden_size)."""
    width = width or model.hidden_size
    if training.kernels == "fused":
        centered = model.norm == "layernorm"
        eps = LAYERNORM_EPS if centered else RMSNORM_EPS
        return FusedNorm(width, eps, centered=centered, bias=centered and model.bias.norm)
    if model.norm == "layernorm":
        return nn.LayerNorm(width, bias=model.bias.norm)
    if training.rmsnorm_implementation == "composed":
        return ComposedRMSNorm(width)
    return nn.RMSNorm(width, eps=RMSNORM_EPS)
