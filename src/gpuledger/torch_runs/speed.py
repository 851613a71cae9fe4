"""Step time by CUDA events, and the FLOPs that PyTorch's own counter counts."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from .reference_model.fused import flop_formulas
from .step import Trainer, nobody

WARMUP_STEPS = 3
FEWEST_STEPS = 3
AFFORDABLE_SECONDS = 3.0


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each step, between two CUDA events on the current stream."""

    seconds: list[float]
    median_seconds: float
    tokens_per_step: int
    tokens_per_second: float


def time_steps(trainer: Trainer, steps: int) -> StepTimes:
    """Up to `steps` steps after a warm-up, fewer if slow; tokens are those of this rank."""
    for _ in range(WARMUP_STEPS):
        trainer.step()
    torch.cuda.synchronize()
    begin = time.monotonic()
    trainer.step()
    torch.cuda.synchronize()
    affordable = int(AFFORDABLE_SECONDS / (time.monotonic() - begin))
    marks = [torch.cuda.Event(enable_timing=True)
             for _ in range(max(FEWEST_STEPS, min(steps, affordable)) + 1)]
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
    """FlopCounterMode over the forward and backward passes of one step, by operator.

    It counts products and attention only, and does not see into PyTorch's linear_cross_entropy. The
    optimizer is left out: its products (Muon, Adafactor) are no FLOPs of the model. The step is
    then finished.
    """
    formulas = flop_formulas() if trainer.training.kernels == "fused" else None
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        for _ in range(trainer.num_microbatches):
            trainer.micro_batch(nobody)
    trainer.update()
    trainer.optimizer.zero_grad(set_to_none=trainer.training.set_to_none)
    by_operator = {str(name): int(n) for name, n in counter.get_flop_counts()["Global"].items()}
    return {"total": int(counter.get_total_flops()), "by_operator": by_operator}
