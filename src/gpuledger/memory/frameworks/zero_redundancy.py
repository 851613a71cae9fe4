"""ZeroRedundancyOptimizer: each rank updates whole parameters of its own, under DDP. [B6]

Ref: torch/distributed/optim/zero_redundancy_optimizer.py (_partition_parameters, step).
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuledger.config.training import Training
from gpuledger.errors import Problem
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..policy import Counted, Kept, Share
from .ddp import DDP

OPTIMIZERS = ("adam", "adamw", "sgd")


@dataclass(frozen=True)
class ZeroRedundancy(DDP):
    """One rank of `ranks`; the first rank with most elements where none is given."""

    ranks: int = 1
    rank: int | None = None
    bucket_view: bool = False

    equation = "B6"

    @property
    def scales_in_step(self) -> bool:
        """The wrapper does not pass the loss scaler's factor on: gradients are unscaled before."""
        return False

    def kept(self, weights: Sequence[Tensor], training: Training) -> list[Kept]:
        """DDP's; with parameters_as_bucket_view a dummy bucket for each rank without parameters."""
        kept = super().kept(weights, training)
        if self.bucket_view:
            idle = sum(not part for part in partition(weights, self.ranks))
            dummies = tuple(Tensor("dummy bucket", (1,), "float32") for _ in range(idle))
            kept.append(Kept("buffers", "buckets of idle ranks", dummies, "B6", f"{idle} ranks"))
        return kept

    def updated(self, weights: Counted) -> list[Share]:
        """The parameters of this rank, the largest first."""
        parts = partition([weight for weight, count in weights for _ in range(count)], self.ranks)
        sizes = [sum(weight.numel for weight in part) for part in parts]
        rank = sizes.index(max(sizes)) if self.rank is None else self.rank
        over = f", of {self.ranks} ranks" if self.ranks > 1 else ""
        return [Share(weight, 1, weight.numel, 0, over) for weight in parts[rank]]


def partition(weights: Sequence[Tensor], ranks: int) -> list[list[Tensor]]:
    """Largest first, each to the rank that has least so far, the first of several. [B6]"""
    parts: list[list[Tensor]] = [[] for _ in range(ranks)]
    sizes: list[Size] = [0] * ranks
    for weight in sorted(weights, key=lambda weight: weight.numel, reverse=True):
        rank = min(range(ranks), key=lambda rank: sizes[rank])
        parts[rank].append(weight)
        sizes[rank] = sizes[rank] + weight.numel
    return parts


def unmodelled_zero_redundancy(training: Training) -> Iterator[Problem]:
    """Optimizers that the reference trainer does not share."""
    if training.optimizer not in OPTIMIZERS:
        yield Problem(f"optimizer {training.optimizer} in ZeroRedundancyOptimizer is not modelled",
                      f"use one of: {', '.join(OPTIMIZERS)}")
    if training.precision == "bf16-master":
        yield Problem("bf16-master in ZeroRedundancyOptimizer is not modelled",
                      "use precision: bf16-mixed")
