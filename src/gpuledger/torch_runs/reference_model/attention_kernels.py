"""The core softmax(Q K^T / sqrt(d)) V: written out, or one of PyTorch's kernels, by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuledger.config.model import Model
from gpuledger.config.training import Attention, Training

from .fused import drop

Mask = Tensor | None
BACKENDS: dict[Attention, SDPBackend] = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@dataclass(frozen=True)
class Core:
    """What a layer's core needs besides tensors; `window` is None where it hides no key."""

    kernel: Attention
    dropout: float
    softcap: float | None
    window: int | None
    fused_dropout: bool = False

    @classmethod
    def of_layer(cls, model: Model, training: Training, layer: int) -> Core:
        """The window counts only if it is shorter than the sequence."""
        window = model.window(layer)
        narrow = window if window is not None and training.seq_len > window else None
        return cls(training.attention, model.attention_dropout, model.attention_softcap, narrow,
                   training.kernels == "fused")


def core(
    query: Tensor, key: Tensor, value: Tensor, settings: Core, mask: Mask, alibi: Mask
) -> Tensor:
    """(b, a, s, d) x3 -> (b, a, s, d).

    mask (s, s): for eager what must not be seen, otherwise what is seen.
    alibi (a, s, s): added to the scores.
    """
    if settings.kernel == "eager":
        return eager(query, key, value, settings, mask, alibi)
    if settings.kernel == "flash" and settings.window is not None:
        return flash_window(query, key, value, settings.dropout, settings.window)
    bias = mask if alibi is None else alibi
    with sdpa_kernel(BACKENDS[settings.kernel]):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, is_causal=bias is None, dropout_p=settings.dropout
        )


def eager(
    query: Tensor, key: Tensor, value: Tensor, settings: Core, mask: Mask, alibi: Mask
) -> Tensor:
    """Every step a tensor (b, a, s, s) of its own."""
    assert mask is not None
    scores = query @ key.transpose(-2, -1)
    scores = scores * (1.0 / math.sqrt(query.size(-1)))
    if settings.softcap:
        scores = settings.softcap * torch.tanh(scores / settings.softcap)
    if alibi is not None:
        scores = scores + alibi
    scores = scores.masked_fill(mask, float("-inf"))
    scores = F.softmax(scores, dim=-1)
    if settings.dropout:
        scores = drop(scores, settings.dropout, fused=settings.fused_dropout)
    return scores @ value


def flash_window(query: Tensor, key: Tensor, value: Tensor, dropout: float, window: int) -> Tensor:
    """FlashAttention-2 with a sliding window, which scaled_dot_product_attention cannot ask for.

    The operator wants (b, s, a, d), which is how the heads lie in memory, and knows no autocast.
    """
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    s = query.size(2)
    heads = (query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    lengths = (None, None, s, s)  # no packed sequences; queries and keys of one sequence
    options = (dropout, True, False)  # causal, without the debug mask
    left, right = window - 1, 0
    output: Tensor = torch.ops.aten._flash_attention_forward(
        *heads, *lengths, *options, window_size_left=left, window_size_right=right
    )[0]
    return output.transpose(1, 2)
