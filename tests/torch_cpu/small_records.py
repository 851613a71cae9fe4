"""Small `Model` and `Training` records for the tests on PyTorch; every field can be replaced."""

from __future__ import annotations

from typing import Any

from gpuledger.config.model import Model
from gpuledger.config.training import Training

GPT2: dict[str, Any] = dict(
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=4,
    head_dim=8,
    ffn_hidden_size=128,
    vocab_size=96,
    max_position_embeddings=24,
    norm="layernorm",
    activation="gelu_tanh",
    positions="learned",
    qkv_projection="fused",
    bias=True,
    tie_embeddings=True,
    dropout=0.0,
    attention_dropout=0.0,
    embedding_dropout=0.0,
)
LLAMA: dict[str, Any] = dict(
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_hidden_size=72,
    vocab_size=96,
    max_position_embeddings=24,
    norm="rmsnorm",
    activation="swiglu",
    positions="rotary",
    qkv_projection="separate",
    bias=False,
    tie_embeddings=False,
    dropout=0.0,
    attention_dropout=0.0,
    embedding_dropout=0.0,
)
STEP: dict[str, Any] = dict(
    seq_len=20,
    micro_batch_size=3,
    global_batch_size=3,
    precision="fp32",
    optimizer="adamw",
    attention="eager",
    recompute="none",
    loss="cross_entropy",
)


def gpt2(**fields: Any) -> Model:
    """GPT-2 in small."""
    return Model.model_validate(GPT2 | fields)


def llama(**fields: Any) -> Model:
    """LLaMA with grouped queries in small."""
    return Model.model_validate(LLAMA | fields)


def training(**fields: Any) -> Training:
    """One micro-batch of three sequences of 20 tokens."""
    return Training.model_validate(STEP | fields)
