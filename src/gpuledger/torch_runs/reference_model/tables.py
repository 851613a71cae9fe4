"""Constants that the forward pass reads: positions, rotary tables, masks, ALiBi biases.

They are buffers, made once. Values are computed on the CPU, so that a device allocates each table
and nothing else.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gpuledger.config.fused_kernels import FusedKernels
from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.torch_runs.precision import compute_dtype

ROTARY_BASE = 10_000.0


class Tables(nn.Module):
    """Only the tables that this run reads are made; the others do not exist."""

    positions: Tensor  # (s) int64: rows of the learned position table
    cos: Tensor  # (s, rotary_dim), dtype of the weights; fused: (s, rotary_dim / 2), fp32
    sin: Tensor  # the same
    mask: Tensor  # (s, s) bool: what a query must not see (eager)
    window_mask: Tensor  # (s, s) bool: the same for layers with a sliding window (eager)
    visible_window: Tensor  # (s, s) bool: what a query sees (scaled_dot_product_attention)
    alibi: Tensor  # (a, s, s) in the dtype of products: added to the scores

    def __init__(self, model: Model, training: Training):
        super().__init__()
        s = training.seq_len
        eager, windowed = training.attention == "eager", window_is_narrow(model, s)
        if model.positions == "learned":
            self.constant(
                "positions", torch.arange(s, device="cpu") + model.learned_position_offset
            )
        if model.positions == "rotary":
            angles = rotary_angles(s, model.rotary_dim or model.head_dim)
            dtype = torch.get_default_dtype()
            if FusedKernels.of(model, training).rotary:
                angles, dtype = angles[:, : angles.size(1) // 2], torch.float32
            self.constant("cos", angles.cos().to(dtype))
            self.constant("sin", angles.sin().to(dtype))
        if model.positions == "alibi":
            self.register_buffer(
                "alibi", alibi_biases(model.num_heads, s, training), persistent=False
            )
        if eager:
            self.constant("mask", ~visible(s))
        if eager and windowed:
            self.constant("window_mask", ~visible(s, model.sliding_window))
        if windowed and training.attention in ("math", "efficient", "cudnn"):
            self.constant("visible_window", visible(s, model.sliding_window))

    def constant(self, name: str, value: Tensor) -> None:
        """Copy `value` to the device on which the model is being made."""
        self.register_buffer(name, value.to(torch.get_default_device()), persistent=False)


def window_is_narrow(model: Model, seq_len: int) -> bool:
    """Some layer has a window shorter than the sequence: a longer one hides nothing."""
    return model.sliding_window is not None and seq_len > model.sliding_window


def visible(seq_len: int, window: int | None = None) -> Tensor:
    """(s, s) bool: query i sees keys i - window + 1 ... i, itself included."""
    below = torch.ones(seq_len, seq_len, dtype=torch.bool, device="cpu").tril_()
    return below if window is None else below.triu_(1 - window)


def rotary_angles(seq_len: int, rotary_dim: int) -> Tensor:
    """(s, rotary_dim): position times inverse frequency, the frequencies repeated for both halves.

    Ref: RoFormer (2104.09864) eq. 15, in the half-rotation form of GPT-NeoX and LLaMA.
    """
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device="cpu") / rotary_dim
    positions = torch.arange(seq_len, dtype=torch.float32, device="cpu")
    angles = torch.outer(positions, ROTARY_BASE**-exponents)
    return torch.cat((angles, angles), dim=-1)


def alibi_slopes(num_heads: int) -> list[float]:
    """One slope per head: 2^(-8/n), 2^(-16/n), ... for n heads; n not a power of two borrows.

    Ref: ALiBi (2108.12409) section 3 and the authors' `get_slopes` for other numbers of heads.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def alibi_biases(num_heads: int, seq_len: int, training: Training) -> Tensor:
    """(a, s, s): -slope * distance; outside eager attention also the causal mask, as -inf."""
    biases = torch.empty(num_heads, seq_len, seq_len, dtype=compute_dtype(training.precision))
    if biases.is_meta:
        return biases
    positions = torch.arange(seq_len, dtype=torch.float32, device="cpu")
    distance = positions[None, :] - positions[:, None]
    if training.attention != "eager":
        distance.masked_fill_(~visible(seq_len), float("-inf"))
    for head, slope in enumerate(alibi_slopes(num_heads)):
        biases[head].copy_(distance * slope)
    return biases
