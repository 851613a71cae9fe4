"""`Model`: the architecture of a decoder, as program, reference modules and FLOPs read it."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from ..errors import Problem
from .record import Record

Count = Annotated[int, Field(gt=0, le=10**9)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class Bias(Record):
    """Which projections have an additive bias.

    In a file `bias: true` or `bias: false` sets all but `head` (and all but `norm`, where the norm
    is an RMSNorm).
    """

    query: bool = Field(description="bias of the query projection")
    key_value: bool = Field(description="bias of the key and value projections")
    attention_out: bool = Field(description="bias of the attention's output projection")
    mlp_up: bool = Field(description="bias of the MLP's up (and gate) projection")
    mlp_down: bool = Field(description="bias of the MLP's down projection")
    norm: bool = Field(description="bias of LayerNorm; RMSNorm has none")
    head: bool = Field(
        default=False, description="bias of the output projection onto the vocabulary"
    )

    @classmethod
    def prepared(cls, values: Any) -> Any:
        """`true` and `false` stand for all projections."""
        return bias_by_projection(values) if isinstance(values, bool) else values


def bias_by_projection(everywhere: bool, *, norm: object = "layernorm") -> dict[str, bool]:
    """The mapping that `bias: true` or `bias: false` stands for."""
    projections = ("query", "key_value", "attention_out", "mlp_up", "mlp_down")
    return dict.fromkeys(projections, everywhere) | {"norm": everywhere and norm == "layernorm"}


class Model(Record):
    """A dense decoder-only transformer. Sizes count elements of the whole, unsharded model."""

    name: str = Field(default="model", description="how reports call it")
    num_layers: Count = Field(description="decoder blocks")
    hidden_size: Count = Field(description="width of the residual stream")
    num_heads: Count = Field(description="query heads")
    num_kv_heads: Count = Field(description="key/value heads: num_heads is MHA, 1 is MQA")
    head_dim: Count = Field(description="width of one head; need not be hidden_size / num_heads")
    ffn_hidden_size: Count = Field(description="inner width of the MLP")
    vocab_size: Count = Field(description="rows of the token embedding and of the head")
    max_position_embeddings: Count = Field(
        description="longest sequence, rows of learned positions"
    )

    norm: Literal["layernorm", "rmsnorm"] = Field(description="kind of normalisation")
    norm_position: Literal["pre", "post", "sandwich"] = Field(
        default="pre",
        description="norm before each sublayer, on its output (OLMo 2), or both (Gemma 2)",
    )
    parallel_residual: bool = Field(
        default=False,
        description="attention and MLP read the same block input and are added together",
    )
    shared_norm: bool = Field(
        default=False,
        description="with parallel_residual: one norm feeds both sublayers (Falcon-7B, Phi)",
    )
    embedding_norm: bool = Field(
        default=False, description="a norm right after the embedding (BLOOM)"
    )
    qk_norm: Literal["none", "head", "full"] = Field(
        default="none",
        description="norm of queries and keys: per head (Qwen3) or whole projection (OLMo 2)",
    )
    activation: Literal["gelu", "gelu_tanh", "relu", "squared_relu", "silu", "swiglu", "geglu"] = (
        Field(description="MLP nonlinearity; swiglu and geglu are gated (three matrices)")
    )
    positions: Literal["learned", "rotary", "alibi", "none"] = Field(
        description="position encoding"
    )
    learned_position_offset: int = Field(
        default=0, ge=0, description="extra rows of the learned position table (OPT: 2)"
    )
    rotary_dim: int | None = Field(
        default=None, gt=0, description="rotated dims of each head; null rotates all of head_dim"
    )
    qkv_projection: Literal["fused", "separate"] = Field(
        description="query, key and value from one matrix (GPT-2) or from three (LLaMA)"
    )
    gate_up_projection: Literal["fused", "separate"] = Field(
        default="separate",
        description="gate and up of a gated MLP from one matrix (Phi-3) or from two",
    )
    bias: Bias = Field(description="true, false, or a mapping per projection")
    tie_embeddings: bool = Field(description="the head uses the token embedding's weight")
    embedding_scale: bool = Field(
        default=False, description="the embedding is multiplied by sqrt(hidden_size) (Gemma)"
    )
    dropout: Probability = Field(description="dropout after each sublayer")
    attention_dropout: Probability = Field(description="dropout of the attention probabilities")
    embedding_dropout: Probability = Field(description="dropout after the embedding")
    sliding_window: int | None = Field(
        default=None, gt=0, description="keys that a query sees in windowed layers, itself included"
    )
    full_attention_interval: int | None = Field(
        default=None,
        gt=0,
        description="with sliding_window: every n-th layer is full (Gemma 2: 2); null: none",
    )
    attention_softcap: float | None = Field(
        default=None, gt=0, description="attention scores become cap * tanh(scores / cap) (Gemma 2)"
    )
    logits_softcap: float | None = Field(
        default=None, gt=0, description="logits become cap * tanh(logits / cap) (Gemma 2)"
    )

    @classmethod
    def prepared(cls, values: Any) -> Any:
        """`bias: true` leaves an RMSNorm without one."""
        if isinstance(values, dict) and isinstance(values.get("bias"), bool):
            return values | {"bias": bias_by_projection(values["bias"], norm=values.get("norm"))}
        return values

    def cross_field_problems(self) -> Iterator[Problem]:
        yield from _attention_problems(self)
        yield from _position_problems(self)
        yield from _block_problems(self)

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


def _attention_problems(model: Model) -> Iterator[Problem]:
    if model.num_heads % model.num_kv_heads:
        yield Problem(
            f"num_heads = {model.num_heads} is not a multiple of num_kv_heads = "
            f"{model.num_kv_heads}",
            "each key/value head serves the same number of query heads: use "
            f"{model.num_heads} (MHA), 1 (MQA) or a divisor of num_heads",
        )
    if model.qkv_projection == "fused" and model.bias.query != model.bias.key_value:
        yield Problem(
            f"bias.query: {str(model.bias.query).lower()} and bias.key_value: "
            f"{str(model.bias.key_value).lower()}, but one fused projection has one bias",
            "set both alike, or qkv_projection: separate",
        )
    if model.full_attention_interval is not None and model.sliding_window is None:
        yield Problem(
            f"full_attention_interval = {model.full_attention_interval} needs a sliding_window",
            "set sliding_window, or leave full_attention_interval out: all layers are full anyway",
        )


def _position_problems(model: Model) -> Iterator[Problem]:
    if model.rotary_dim is not None:
        if model.positions != "rotary":
            yield Problem(
                f"rotary_dim = {model.rotary_dim} has no meaning with positions: {model.positions}",
                "set positions: rotary, or leave rotary_dim out",
            )
        if model.rotary_dim > model.head_dim:
            yield Problem(
                f"rotary_dim = {model.rotary_dim} is more than head_dim = {model.head_dim}",
                "rotary_dim counts the rotated dims of one head; left out, all are rotated",
            )
    rotated = model.rotary_dim or model.head_dim
    if model.positions == "rotary" and rotated % 2:
        yield Problem(
            f"rotary positions rotate pairs, but {rotated} dims of each head is odd",
            "make rotary_dim (or head_dim) even",
        )
    if model.positions == "alibi" and model.sliding_window is not None:
        yield Problem(
            f"positions: alibi together with sliding_window = {model.sliding_window} is not a "
            "known architecture",
            "leave sliding_window out",
        )
    if model.learned_position_offset and model.positions != "learned":
        yield Problem(
            f"learned_position_offset = {model.learned_position_offset} needs positions: learned, "
            f"not {model.positions}",
            "leave learned_position_offset out",
        )


def _block_problems(model: Model) -> Iterator[Problem]:
    if model.shared_norm and not model.parallel_residual:
        yield Problem(
            "shared_norm: true needs parallel_residual: true",
            "one norm can feed attention and MLP only where both read the same input",
        )
    if model.parallel_residual and model.norm_position != "pre":
        yield Problem(
            f"parallel_residual: true goes with norm_position: pre, not {model.norm_position}",
            "leave norm_position out",
        )
    if model.gate_up_projection == "fused" and not model.gated:
        yield Problem(
            f"gate_up_projection: fused needs a gated activation, not {model.activation}",
            "use swiglu or geglu, or leave gate_up_projection out",
        )
    if model.norm == "rmsnorm" and model.bias.norm:
        yield Problem(
            "bias.norm: true, but an RMSNorm has no bias",
            "set bias.norm: false, or norm: layernorm",
        )
