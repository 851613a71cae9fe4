"""Sizes that one rank sees: the model's, divided by tensor and context parallelism."""
from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training
from gpuledger.errors import InputError

from .sizes import Size, ceil_div, round_up


def shard(size: int, ways: int, what: str) -> int:
    """size / ways. Raises InputError where it does not divide: padding is a decision with a name.
    """
    if ways > 1 and size % ways:
        raise InputError(f"{what} = {size} cannot be split {ways} ways",
                         f"use a divisor of {size}, or pad it")
    return size // ways


@dataclass(frozen=True)
class Local:
    """Local sizes: b sequences, s tokens of each, heads, kv heads, MLP width and vocabulary rows.

    tp ranks share each layer; with sequence_parallel the residual stream has s / tp tokens on each.
    style: whose tensor-parallel modules, "megatron" or "torch" (DTensor). cp ranks share the
    sequence, and exchange keys and values in a ring or gather them (cp_exchange); this is rank
    cp_rank of them.
    """

    micro_batch_size: Size
    seq_len: Size
    num_heads: Size
    num_kv_heads: Size
    ffn_hidden_size: Size
    vocab_size: Size
    tp: int = 1
    sequence_parallel: bool = False
    style: str = "megatron"
    cp: int = 1
    cp_exchange: str = "ring"
    cp_rank: int = 0

    @classmethod
    def of(cls, model: Model, training: Training, tp: int = 1, cp: int = 1) -> Local:
        """Divide by tp and cp. Raises InputError where a size does not divide.

        The vocabulary is padded to a multiple of tp.
        """
        return cls(
            micro_batch_size=training.micro_batch_size,
            seq_len=shard(training.seq_len, cp, "seq_len"),
            num_heads=shard(model.num_heads, tp, "num_heads"),
            num_kv_heads=shard(model.num_kv_heads, tp, "num_kv_heads"),
            ffn_hidden_size=shard(model.ffn_hidden_size, tp, "ffn_hidden_size"),
            vocab_size=ceil_div(model.vocab_size, tp), tp=tp, cp=cp,
        )

    @classmethod
    def of_rank(cls, model: Model, training: Training, parallel: Parallelism) -> Local:
        """The sizes of one rank of a run's mesh. Raises InputError where a size does not divide.

        Context-parallel rank 1 where there are several between the first and the last, else 0; with
        Megatron the last, whose outputs of rounds are whole.
        """
        if parallel.tp == parallel.cp == 1 and parallel.framework != "megatron":
            return cls.of(model, training)
        whole = cls.of(model, training, parallel.tp, parallel.cp)
        if parallel.sequence_parallel:
            shard(whole.seq_len, parallel.tp, "seq_len of a context-parallel rank")
        changes = {
            "vocab_size": padded_vocab_size(model.vocab_size, parallel) // parallel.tp,
            "sequence_parallel": parallel.sequence_parallel,
            "style": parallel.model_parallel_library,
            "cp_exchange": parallel.context_exchange,
            "cp_rank": default_cp_rank(parallel) if parallel.cp_rank is None else parallel.cp_rank,
        }
        return cls(**(whole.__dict__ | changes))

    @property
    def residual_seq_len(self) -> Size:
        """Tokens of a sequence in the residual stream of this rank."""
        return self.seq_len // self.tp if self.sequence_parallel else self.seq_len


def default_cp_rank(parallel: Parallelism) -> int:
    """The context-parallel rank that needs most memory in attention."""
    return parallel.cp - 1 if parallel.framework == "megatron" else int(parallel.cp > 2)


def padded_vocab_size(vocab_size: int, parallel: Parallelism) -> int:
    """Rows of the embedding of all tensor-parallel ranks together. [X1]

    Megatron pads to a multiple of make_vocab_size_divisible_by x tp, otherwise to a multiple of tp.
    Ref: Megatron-LM megatron/training/tokenizer: _vocab_size_with_padding.
    """
    multiple = parallel.tp
    if parallel.framework == "megatron":
        multiple *= parallel.megatron.make_vocab_size_divisible_by
    padded: int = round_up(vocab_size, multiple)
    return padded
