"""Parameter counts of a `Model` in closed form, without building the step program.

The program counts the same weights tensor by tensor; a test compares the two.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..config.model import Model

NORMS_OF_BLOCK = {"pre": 2, "post": 2, "sandwich": 4}


@dataclass(frozen=True)
class BlockParameters:
    """Parameters of one decoder block, in elements."""

    attention_matrices: int
    mlp_matrices: int
    biases: int
    norms: int
    qk_norms: int

    @property
    def matrices(self) -> int:
        """Elements that take part in a matrix product."""
        return self.attention_matrices + self.mlp_matrices

    @property
    def total(self) -> int:
        """All parameters of the block."""
        return self.matrices + self.biases + self.norms + self.qk_norms


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a whole, unsharded model, in elements. A tied weight is counted once."""

    num_layers: int
    block: BlockParameters
    token_embedding: int
    position_embedding: int
    embedding_norm: int
    final_norm: int
    head: int
    """The head's own matrix; 0 where it is the token embedding's."""
    head_bias: int

    @property
    def blocks(self) -> int:
        """Parameters of all decoder blocks."""
        return self.num_layers * self.block.total

    @property
    def embedding(self) -> int:
        """Token and learned position tables."""
        return self.token_embedding + self.position_embedding

    @property
    def total(self) -> int:
        """Every parameter once, as `sum(p.numel() for p in model.parameters())`."""
        return (self.embedding + self.embedding_norm + self.blocks + self.final_norm
                + self.head + self.head_bias)

    @property
    def non_embedding(self) -> int:
        """Kaplan's N: without token table, position table and the head's matrix."""
        return self.total - self.embedding - self.head

    @property
    def lookup_only(self) -> int:
        """Tables that are only looked up: learned positions, and an untied token table."""
        return self.position_embedding + (self.token_embedding if self.head else 0)


def norm_parameters(model: Model, width: int) -> int:
    """Parameters of one norm over `width` features: a scale, and LayerNorm's bias. [P1]"""
    has_bias = model.norm == "layernorm" and model.bias.norm
    return width * (2 if has_bias else 1)


def norms_of_block(model: Model) -> int:
    """How many norms over the hidden size one block owns. [P2]

    One before each sublayer (pre), one on its output (post), or both (sandwich). A parallel block
    may feed both sublayers from one norm, which takes the place of two.
    """
    return NORMS_OF_BLOCK[model.norm_position] - (1 if model.shared_norm else 0)


def block_parameters(model: Model) -> BlockParameters:
    """Parameters of one decoder block. [P3]

    Query (h, a d), key and value (h, a_kv d) each, output (a d, h); MLP: up, with a gate two of
    them, (h, f) each, and down (f, h). Fused matrices hold the same elements as separate ones.
    """
    h, f = model.hidden_size, model.ffn_hidden_size
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    ups = 2 if model.gated else 1
    bias = model.bias
    biases = (q * bias.query + 2 * kv * bias.key_value + h * bias.attention_out
              + ups * f * bias.mlp_up + h * bias.mlp_down)
    return BlockParameters(
        attention_matrices=h * (q + 2 * kv) + q * h,
        mlp_matrices=ups * h * f + f * h,
        biases=biases,
        norms=norms_of_block(model) * norm_parameters(model, h),
        qk_norms=_qk_norm_parameters(model, q, kv),
    )


def _qk_norm_parameters(model: Model, q: int, kv: int) -> int:
    """Norms of queries and keys: over one head's width, shared by all heads, or over all of it."""
    if model.qk_norm == "none":
        return 0
    widths = (q, kv) if model.qk_norm == "full" else (model.head_dim, model.head_dim)
    return sum(norm_parameters(model, width) for width in widths)


def parameter_counts(model: Model) -> ParameterCounts:
    """Parameters of a dense decoder. [P4]

    Tables (V, h) and, with learned positions, (rows, h); the head (V, h) unless tied; a final norm.
    Rotary and ALiBi positions have no parameters.
    """
    h, V = model.hidden_size, model.vocab_size
    rows = model.max_position_embeddings + model.learned_position_offset
    return ParameterCounts(
        num_layers=model.num_layers,
        block=block_parameters(model),
        token_embedding=V * h,
        position_embedding=rows * h if model.positions == "learned" else 0,
        embedding_norm=norm_parameters(model, h) if model.embedding_norm else 0,
        final_norm=norm_parameters(model, h),
        head=0 if model.tie_embeddings else V * h,
        head_bias=V if model.bias.head else 0,
    )
