"""`Model`: the architecture of a decoder, as the program, the reference modules and the FLOPs read it."""
from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .record import Record

Count = Annotated[int, Field(gt=0, le=10**9)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class Bias(Record):
    """Which projections have an additive bias. In a file `bias: true` or `bias: false` sets all but `head`."""

    query: bool = Field(description="bias of the query projection")
    key_value: bool = Field(description="bias of the key and value projections")
    attention_out: bool = Field(description="bias of the attention's output projection")
    mlp_up: bool = Field(description="bias of the MLP's up (and gate) projection")
    mlp_down: bool = Field(description="bias of the MLP's down projection")
    norm: bool = Field(description="bias of LayerNorm; RMSNorm has none")
    head: bool = Field(default=False, description="bias of the output projection onto the vocabulary")

    @model_validator(mode="before")
    @classmethod
    def one_word_for_all(cls, value: Any) -> Any:
        if isinstance(value, bool):
            names = ("query", "key_value", "attention_out", "mlp_up", "mlp_down", "norm")
            return dict.fromkeys(names, value)
        return value


class Model(Record):
    """A dense decoder-only transformer. Sizes are numbers of elements of the whole, unsharded model."""

    name: str = Field(default="model", description="how reports call it")
    num_layers: Count = Field(description="decoder blocks")
    hidden_size: Count = Field(description="width of the residual stream")
    num_heads: Count = Field(description="query heads")
    num_kv_heads: Count = Field(description="key/value heads: num_heads is MHA, 1 is MQA")
    head_dim: Count = Field(description="width of one head; need not be hidden_size / num_heads")
    ffn_hidden_size: Count = Field(description="inner width of the MLP")
    vocab_size: Count = Field(description="rows of the token embedding and of the head")
    max_position_embeddings: Count = Field(description="longest sequence, rows of learned positions")

    norm: Literal["layernorm", "rmsnorm"] = Field(description="kind of normalisation")
    norm_position: Literal["pre", "post", "sandwich"] = Field(
        default="pre", description="norm before each sublayer, on its output (OLMo 2), or both (Gemma 2)")
    parallel_residual: bool = Field(
        default=False, description="attention and MLP read the same block input and are added together")
    shared_norm: bool = Field(
        default=False, description="with parallel_residual: one norm feeds both sublayers (Falcon-7B, Phi)")
    embedding_norm: bool = Field(default=False, description="a norm right after the embedding (BLOOM)")
    qk_norm: Literal["none", "head", "full"] = Field(
        default="none", description="norm of queries and keys: per head (Qwen3) or whole projection (OLMo 2)")
    activation: Literal["gelu", "gelu_tanh", "relu", "squared_relu", "silu", "swiglu", "geglu"] = Field(
        description="MLP nonlinearity; swiglu and geglu are gated (three matrices)")
    positions: Literal["learned", "rotary", "alibi", "none"] = Field(description="position encoding")
    learned_position_offset: int = Field(
        default=0, ge=0, description="extra rows of the learned position table (OPT: 2)")
    rotary_dim: int | None = Field(
        default=None, gt=0, description="rotated dims of each head; null rotates all of head_dim")
    qkv_projection: Literal["fused", "separate"] = Field(
        description="query, key and value from one matrix (GPT-2) or from three (LLaMA)")
    gate_up_projection: Literal["fused", "separate"] = Field(
        default="separate", description="gate and up of a gated MLP from one matrix (Phi-3) or from two")
    bias: Bias = Field(description="true, false, or a mapping per projection")
    tie_embeddings: bool = Field(description="the head uses the token embedding's weight")
    embedding_scale: bool = Field(
        default=False, description="the embedding is multiplied by sqrt(hidden_size) (Gemma)")
    dropout: Probability = Field(description="dropout after each sublayer")
    attention_dropout: Probability = Field(description="dropout of the attention probabilities")
    embedding_dropout: Probability = Field(description="dropout after the embedding")
    sliding_window: int | None = Field(
        default=None, gt=0, description="keys that a query sees in windowed layers, itself included")
    full_attention_interval: int | None = Field(
        default=None, gt=0,
        description="with sliding_window: every n-th layer sees all keys (Gemma 2: 2); null: no layer does")
    attention_softcap: float | None = Field(
        default=None, gt=0, description="attention scores become cap * tanh(scores / cap) (Gemma 2)")
    logits_softcap: float | None = Field(
        default=None, gt=0, description="logits become cap * tanh(logits / cap) (Gemma 2)")

    @property
    def gated(self) -> bool:
        """The MLP has a gate beside its up projection."""
        return self.activation in ("swiglu", "geglu")

    def window(self, layer: int) -> int | None:
        """Keys that a query of this layer sees at most, or None for all before it."""
        if self.sliding_window is None:
            return None
        every = self.full_attention_interval
        return None if every and (layer + 1) % every == 0 else self.sliding_window
