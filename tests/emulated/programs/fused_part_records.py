"""The records of fused_parts.py, without torch."""
from __future__ import annotations

from gpuledger.config import load_model
from gpuledger.config.model import Model
from gpuledger.config.training import Training

LOSSES = {"head torch": ("torch", "cross_entropy"), "head torch fp32": ("torch", "fp32_logits"),
          "head in place": ("fused", "cross_entropy"), "head linear": ("fused", "fused_linear")}


def records(kernels: str, loss: str = "cross_entropy") -> tuple[Model, Training]:
    chunks = {"loss_chunks": 32} if loss == "fused_linear" else {}
    training = Training.model_validate(dict(
        seq_len=8192, micro_batch_size=1, global_batch_size=1, precision="bf16", optimizer="adamw",
        attention="flash", recompute="none", loss=loss, kernels=kernels, **chunks))
    return load_model("llama3-8b"), training
