"""Constant tensors of a model that are no parameters: positions, rotary angles, masks."""
from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.fused_kernels import FusedKernels
from gpuledger.config.model import Model
from gpuledger.config.training import Training

from .precision import PRECISIONS
from .tensor import Tensor


def tables(model: Model, training: Training) -> Iterator[Tensor]:
    """Constant tensors that the forward pass reads, in the order in which they are made. [S14]"""
    s = training.seq_len
    precision = PRECISIONS[training.precision]
    windowed = model.sliding_window is not None and s > model.sliding_window
    if model.positions == "learned":
        yield Tensor("positions", (s,), "int64", "table")
    if model.positions == "rotary":
        width, dtype = model.rotary_dim or model.head_dim, precision.weight_dtype
        if FusedKernels.of(model, training).rotary:      # one angle per pair, in fp32
            width, dtype = width // 2, "float32"
        yield Tensor("cos", (s, width), dtype, "table")
        yield Tensor("sin", (s, width), dtype, "table")
    if model.positions == "alibi":
        yield Tensor("alibi", (model.num_heads, s, s), precision.compute_dtype, "table")
    if training.attention == "eager":
        yield Tensor("causal mask", (s, s), "bool", "table")
        if windowed:
            yield Tensor("window mask", (s, s), "bool", "table")
    elif windowed and training.attention != "flash":
        yield Tensor("visible window", (s, s), "bool", "table")
