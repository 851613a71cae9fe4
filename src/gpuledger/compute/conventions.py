"""Model FLOPs and hardware FLOPs of a training step under the conventions of the field.

Every count is an exact integer per sequence and per step. Per token it is the count per sequence
divided by the sequence's tokens; only `exact` and `megatron` with windows can leave a remainder
there, and it is rounded down.
"""
from __future__ import annotations

from difflib import get_close_matches
from typing import Literal

from ..config.model import Model
from ..config.training import Recompute, Training
from ..errors import InputError
from .convention_formulas import CONVENTIONS, Convention
from .parameters import parameter_counts
from .sequence_flops import SequenceFlops, paper_selective_rerun_flops, rerun_flops

DEFAULT_CONVENTION = "megatron"
RerunRule = Literal["whole-block", "paper"]


def find_convention(name: str) -> Convention:
    """The convention of this name; llm-foundry and llm.c may be spelled with - and . too.

    Raises InputError with the nearest names if there is none.
    """
    found = CONVENTIONS.get(name.lower().replace("-", "_").replace(".", "_"))
    if found is None:
        near = get_close_matches(name, CONVENTIONS, n=3) or list(CONVENTIONS)
        raise InputError(f"there is no FLOPs convention {name!r}", f"use one of {', '.join(near)}")
    return found


def sequence_flops(model: Model, seq_len: int, convention: str = DEFAULT_CONVENTION
                   ) -> SequenceFlops:
    """Model FLOPs of one sequence by part: forward and backward, no recompute."""
    if seq_len < 1:
        raise InputError(f"a sequence of {seq_len} tokens has no FLOPs", "set seq_len to 1 or more")
    return find_convention(convention).flops(model, parameter_counts(model), seq_len)


def model_flops_per_sequence(model: Model, seq_len: int,
                             convention: str = DEFAULT_CONVENTION) -> int:
    """Model FLOPs of one sequence: forward and backward, no recompute."""
    return sequence_flops(model, seq_len, convention).total


def model_flops_per_token(model: Model, seq_len: int, convention: str = DEFAULT_CONVENTION) -> int:
    """Model FLOPs of a token, on average over its sequence, rounded down."""
    return model_flops_per_sequence(model, seq_len, convention) // seq_len


def model_flops_per_step(model: Model, training: Training,
                         convention: str = DEFAULT_CONVENTION) -> int:
    """Model FLOPs of one optimizer step over all GPUs."""
    per_sequence = model_flops_per_sequence(model, training.seq_len, convention)
    return training.global_batch_size * per_sequence


def hardware_flops_per_sequence(model: Model, seq_len: int, recompute: Recompute,
                                convention: str = DEFAULT_CONVENTION,
                                rule: RerunRule = "whole-block") -> int:
    """Model FLOPs of one sequence and what recompute runs again.

    rule: `whole-block` runs a recomputed block's forward pass again, all of it, and with selective
    the attention core's; `paper` differs for selective only, where it doubles the core as the
    published formula does (see `paper_selective_rerun_flops`).
    """
    flops = sequence_flops(model, seq_len, convention)
    if rule == "paper" and recompute == "selective":
        return flops.total + paper_selective_rerun_flops(flops)
    return flops.total + rerun_flops(model, flops, recompute)


def model_flops_by_convention(model: Model, seq_len: int) -> dict[str, int]:
    """Model FLOPs of one sequence under every convention."""
    return {name: model_flops_per_sequence(model, seq_len, name) for name in CONVENTIONS}
