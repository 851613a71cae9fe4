"""`Training`: one optimizer step, as the user's script runs it."""
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .record import Record

Precision = Literal["fp32", "tf32", "fp16-mixed", "bf16-mixed", "bf16", "bf16-master"]
Optimizer = Literal["sgd", "adam", "adamw", "adafactor", "lion", "muon", "adamw-8bit"]
Attention = Literal["eager", "math", "efficient", "flash", "cudnn"]
Loss = Literal["cross_entropy", "fp32_logits", "chunked", "fused_linear"]


class EveryK(Record):
    """`recompute: {every: 2}` recomputes one block in two."""

    every: int = Field(gt=0, description="blocks 0, k, 2k, ... are recomputed")


Recompute = Literal["none", "selective", "full"] | EveryK


class Training(Record):
    """What one rank does in one optimizer step. Sequences and tokens, never bytes."""

    seq_len: int = Field(gt=0, le=10**8, description="tokens of one sequence")
    micro_batch_size: int = Field(gt=0, le=10**6, description="sequences of one forward pass on one rank")
    global_batch_size: int = Field(
        gt=0, le=10**9,
        description="sequences of one optimizer step over all data-parallel ranks")
    precision: Precision = Field(
        description="fp32; tf32 (fp32 with TF32 products); fp16-mixed, bf16-mixed (autocast over fp32 "
                    "weights); bf16 (weights and states in bf16); bf16-master (bf16 weights, fp32 master)")
    optimizer: Optimizer = Field(description="the optimizer")
    optimizer_implementation: Literal["foreach", "fused", "for-loop"] = Field(
        default="foreach", description="as PyTorch's foreach= and fused=; PyTorch's default is foreach")
    amsgrad: bool = Field(default=False, description="Adam(W) with the running maximum of the second moment")
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.0, description="momentum of SGD; above 0 it keeps one state per parameter")
    attention: Attention = Field(description="attention kernel")
    recompute: Recompute = Field(
        description="activation checkpointing: none, selective (the attention core), full (every block), "
                    "or {every: k}")
    loss: Loss = Field(
        description="cross_entropy; fp32_logits (logits.float() first); chunked (over tokens); "
                    "fused_linear (never the whole logits)")
    loss_chunks: int = Field(default=8, gt=0, description="pieces of the chunked and fused_linear losses")
    rmsnorm_implementation: Literal["fused", "composed"] = Field(
        default="fused", description="torch.nn.functional.rms_norm, or elementary operators (Hugging Face)")
    gradient_clipping: bool = Field(default=False, description="clip_grad_norm_ before the step")
    set_to_none: bool = Field(default=True, description="zero_grad(set_to_none=...): False keeps gradients")
    keep_logits: bool = Field(
        default=False, description="the caller keeps the model's logits through backward")
    kernels: Literal["torch", "fused"] = Field(
        default="torch", description="PyTorch's kernels, or gpuledger's fused ones")
