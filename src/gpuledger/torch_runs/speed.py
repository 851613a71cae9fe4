"""Step time by CUDA events, and the FLOPs that PyTorch's own counter counts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from .step import Trainer

WARMUP_STEPS = 3


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each step, between two CUDA events on the current stream."""

    seconds: list[float]
    median_seconds: float
    tokens_per_step: int
    tokens_per_second: float


def time_steps(trainer: Trainer, steps: int) -> StepTimes:
    """`steps` steps after a warm-up; tokens are those of this rank."""
    for _ in range(WARMUP_STEPS):
        trainer.step()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        trainer.step()
        mark.record()
    torch.cuda.synchronize()
    milliseconds = [a.elapsed_time(b) for a, b in pairwise(marks)]
    seconds = [value / 1000 for value in milliseconds]
    median = statistics.median(seconds)
    tokens = trainer.tokens.numel() * trainer.num_microbatches
    return StepTimes(seconds, median, tokens, tokens / median)


def count_flops(trainer: Trainer) -> dict[str, Any]:
    """FlopCounterMode over one whole step, by operator: it counts products and attention only.

    A checkpointed part counts twice in the forward operators, once for each run.
    """
    with FlopCounterMode(display=False) as counter:
        trainer.step()
    by_operator = {str(name): int(n) for name, n in counter.get_flop_counts()["Global"].items()}
    return {"total": int(counter.get_total_flops()), "by_operator": by_operator}
