"""Sizes that one rank sees: the model's, divided by tensor and context parallelism."""
from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.errors import InputError

from .sizes import Size


def shard(size: int, ways: int, what: str) -> int:
    """size / ways. Raises InputError where it does not divide: padding is a decision with a name."""
    if ways > 1 and size % ways:
        raise InputError(f"{what} = {size} cannot be split {ways} ways",
                         f"use a divisor of {size}, or pad it")
    return size // ways


@dataclass(frozen=True)
class Local:
    """Local sizes: b sequences, s tokens of each, heads, kv heads, MLP width and vocabulary rows."""

    micro_batch_size: Size
    seq_len: Size
    num_heads: Size
    num_kv_heads: Size
    ffn_hidden_size: Size
    vocab_size: Size

    @classmethod
    def of(cls, model: Model, training: Training, tp: int = 1, cp: int = 1) -> Local:
        """Divide by tp and cp. Raises InputError where a size does not divide."""
        return cls(
            micro_batch_size=training.micro_batch_size,
            seq_len=shard(training.seq_len, cp, "seq_len"),
            num_heads=shard(model.num_heads, tp, "num_heads"),
            num_kv_heads=shard(model.num_kv_heads, tp, "num_kv_heads"),
            ffn_hidden_size=shard(model.ffn_hidden_size, tp, "ffn_hidden_size"),
            vocab_size=shard(model.vocab_size, tp, "vocab_size"),
        )
