"""FLOPs of one sequence, by part, and what a recompute policy adds to them."""
from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..config.model import Model
from ..config.training import EveryK, Recompute

FORWARD_AND_BACKWARD = Fraction(3)
"""Backward needs two products for each of the forward pass: for the input and for the weight."""


@dataclass(frozen=True)
class SequenceFlops:
    """Forward and backward FLOPs of one sequence, as one convention counts them. Integers."""

    seq_len: int
    num_layers: int
    full_layers: int
    """Layers whose queries see all keys before them; the others are windowed."""
    block: int
    """One block without its attention core."""
    core: int
    """The attention core (QK^T and PV) of one layer that sees all keys."""
    windowed_core: int
    """The attention core of one windowed layer."""
    vocabulary: int
    """What the convention counts outside the blocks: the head, and for some the embedding."""
    core_passes: Fraction = FORWARD_AND_BACKWARD
    """Forward and backward of the attention core, in forward passes."""

    @property
    def attention(self) -> int:
        """The attention cores of all layers."""
        windowed = self.num_layers - self.full_layers
        return self.full_layers * self.core + windowed * self.windowed_core

    @property
    def total(self) -> int:
        """Model FLOPs of one sequence."""
        return self.num_layers * self.block + self.attention + self.vocabulary

    @property
    def attention_share(self) -> float:
        """Share of the attention cores in the model FLOPs, 0 to 1."""
        return self.attention / self.total


def full_layers(model: Model, step: int = 1) -> int:
    """Of layers 0, step, 2 step, ...: how many see all keys. [F1]

    Layer i is a full one if (i + 1) mod n = 0. With i = j step that is j step = -1 (mod n), which
    has one solution j in each n, or none if step and n share a factor.
    """
    visited = -(-model.num_layers // step)
    if model.sliding_window is None:
        return visited
    n = model.full_attention_interval
    if n is None:
        return 0
    try:
        first = -pow(step, -1, n) % n
    except ValueError:
        return 0
    return max(0, -(-(visited - first) // n))


def rerun_flops(model: Model, flops: SequenceFlops, recompute: Recompute) -> int:
    """FLOPs of one sequence that recompute runs again, by the rule "whole block". [F10]

    full and every-k: the forward pass of each recomputed block, all of it. selective: the forward
    pass of the attention cores. per_op: every second product without a bias, in the order of a
    block. Norms and activations are as free here as they are in model FLOPs.

    PyTorch stops a recomputed block early: its last linear is not run again, because nothing is
    saved after it. The step program counts that, operator by operator; this rule does not, as the
    literature's hardware FLOPs do not.
    """
    if recompute == "none":
        return 0
    if recompute == "selective":
        return _forward_cores(flops, flops.full_layers, flops.num_layers)
    if recompute == "per_op":
        return flops.num_layers * flops.seq_len * second_products(model)
    step = recompute.every if isinstance(recompute, EveryK) else 1
    blocks = -(-flops.num_layers // step)
    return (blocks * flops.block // 3
            + _forward_cores(flops, full_layers(model, step), blocks))


def second_products(model: Model) -> int:
    """FLOPs per token of every second product without a bias, forward. [F10]

    Ref: torchtitan/distributed/activation_checkpoint.py (every second mm; a bias makes it an addmm).
    """
    h, f, bias = model.hidden_size, model.ffn_hidden_size, model.bias
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    together = model.qkv_projection == "fused"
    qkv = ([(h * (q + 2 * kv), bias.query)] if together
           else [(h * q, bias.query), (h * kv, bias.key_value), (h * kv, bias.key_value)])
    gates = 2 if model.gated and model.gate_up_projection == "separate" else 1
    up = [(h * f * (2 if model.gated else 1) // gates, bias.mlp_up)] * gates
    products = [*qkv, (q * h, bias.attention_out), *up, (f * h, bias.mlp_down)]
    return 2 * sum([size for size, biased in products if not biased][1::2])


def _forward_cores(flops: SequenceFlops, full: int, layers: int) -> int:
    both_passes = full * flops.core + (layers - full) * flops.windowed_core
    forward = both_passes / flops.core_passes
    assert forward.denominator == 1, "a core is a whole number of forward passes"
    return int(forward)


def paper_selective_rerun_flops(flops: SequenceFlops) -> int:
    """FLOPs that selective recompute adds in the published formula. [F11]

    Korthikanti et al. (2205.05198) App. A: hardware FLOPs 72 B L s h^2 (1 + s/3h + V/12hL) against
    72 B L s h^2 (1 + s/6h + V/12hL). That doubles the attention core, forward and backward, where
    one more forward pass is run. It is what the published HFU of selective recompute follows.
    """
    return flops.attention
