"""Sizes of one rank: what tensor and context parallelism leave of a layer."""

from __future__ import annotations

from dataclasses import dataclass

from .arithmetic import Number, maximum
from .inputs import Decoder, Layout


@dataclass(frozen=True)
class Local:
    """One micro-batch on one rank, in elements."""

    tokens: Number
    query: Number
    """Width of the queries: heads of this rank x head_dim."""
    key_value: Number
    """Width of the keys, and of the values; a rank holds at least one head of them."""
    ffn: Number
    vocab: Number
    sequences_times_heads: Number

    @classmethod
    def of(cls, decoder: Decoder, layout: Layout) -> Local:
        kv_heads = maximum(decoder.num_kv_heads / layout.tp, 1)
        return cls(
            tokens=layout.micro_batch_size * decoder.seq_len / layout.cp,
            query=decoder.num_heads * decoder.head_dim / layout.tp,
            key_value=kv_heads * decoder.head_dim,
            ffn=decoder.ffn_hidden_size / layout.tp,
            vocab=decoder.vocab_size / layout.tp,
            sequences_times_heads=layout.micro_batch_size * decoder.num_heads / layout.tp,
        )
