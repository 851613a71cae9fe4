"""What a plan is asked: the run, how many GPUs, what may vary, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuledger.config.parallelism import Framework
from gpuledger.config.run import Run
from gpuledger.config.training import Recompute
from gpuledger.errors import InputError
from gpuledger.memory.context import context_problems

from .enumerate import divisors, stage_counts, tensor_parallel_sizes
from .layouts import Space

By = Literal["time", "gpus", "gpu-hours", "cost"]
SECONDS_PER_DAY = 86_400
MOST_SEQUENCES = 64  # of a micro-batch
MOST_CHUNKS = 12  # of a pipeline stage
CONTEXT_PARALLEL = (1, 2, 4, 8, 16)
LONG_TOKENS = 16_384  # a sequence of so many tokens may be divided over GPUs

AXES = {
    "parallel.tp": "tp",
    "parallel.pp": "pp",
    "parallel.vpp": "vpp",
    "parallel.cp": "cp",
    "parallel.zero_stage": "zero_stage",
    "parallel.sequence_parallel": "sequence_parallel",
    "parallel.framework": "framework",
    "training.micro_batch_size": "micro_batch_size",
    "training.recompute": "recompute",
}
"""Keys of a run that a plan chooses, and the names of their axes."""


@dataclass(frozen=True)
class Question:
    """run: its mesh, micro-batch and recompute are not looked at. gpus: the numbers to choose from.

    over: values of single axes, by name. precision_given: the run says which precision, so that no
    framework's own takes its place. headroom_percent: of the capacity, kept free. days: the
    deadline for `tokens`. price: of one GPU hour; cost ranks as GPU hours do.
    """

    run: Run
    gpus: tuple[int, ...]
    by: By = "time"
    tokens: int | None = None
    days: float | None = None
    price: float | None = None
    headroom_percent: float = 5.0
    top: int = 5
    over: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    precision_given: bool = False

    @property
    def longest_step_seconds(self) -> float | None:
        """What a step may take for the deadline to be met. [L4]"""
        if self.days is None or self.tokens is None:
            return None
        return self.days * SECONDS_PER_DAY / self.run.training.optimizer_steps(self.tokens)

    @property
    def frameworks(self) -> tuple[Framework | None, ...] | None:
        """Those to choose from; None where each layout takes its usual one."""
        return self.over.get("framework")

    def space(self) -> Space:
        """Every axis with its values. Raises InputError for values that no layout can have."""
        run, model = self.run, self.run.model
        axes: dict[str, tuple[Any, ...]] = {
            "tp": tuple(tensor_parallel_sizes(model, run.cluster.gpus_per_node)),
            "pp": tuple(stage_counts(model)),
            "vpp": tuple(v for v in divisors(model.num_layers) if v <= MOST_CHUNKS),
            "cp": tuple(self._context_parallel()),
            "micro_batch_size": tuple(
                d for d in divisors(run.training.global_batch_size) if d <= MOST_SEQUENCES
            ),
            "zero_stage": (0, 1, 2, 3),
            "sequence_parallel": (0, 1),
            "recompute": self._recompute(),
        }
        for name, values in self.over.items():
            if name != "framework":
                axes[name] = self._chosen(name, values, axes[name])
        return Space(run=run, gpus=self.gpus, **axes)

    def _context_parallel(self) -> list[int]:
        """Long sequences are divided, as far as there is an account of it."""
        if self.run.training.seq_len < LONG_TOKENS:
            return [1]
        return [c for c in CONTEXT_PARALLEL if c == 1 or not any(context_problems(self._over(c)))]

    def _over(self, cp: int) -> Run:
        """The run on so many context-parallel ranks."""
        parallel = self.run.parallel.model_copy(update={"cp": cp})
        return self.run.model_copy(update={"parallel": parallel})

    def _recompute(self) -> tuple[Recompute, ...]:
        """Selective means the attention core, which fused kernels recompute anyway."""
        if self.run.training.offload != "none":           # of what recompute keeps
            return ("full",)
        unfused = self.run.training.attention in ("eager", "math")
        return ("none", "selective", "full") if unfused else ("none", "full")

    def _chosen(self, name: str, values: tuple[Any, ...], usual: tuple[Any, ...]) -> tuple[Any, ...]:
        values = tuple(int(v) if isinstance(v, bool) else v for v in values)
        if name in ("recompute", "vpp", "cp", "micro_batch_size"):
            return values
        wrong = [value for value in values if value not in usual]
        if wrong:
            raise InputError(
                f"{name} = {', '.join(map(str, wrong))} is in no layout of {self.run.model.name}",
                f"possible: {', '.join(map(str, usual))}",
            )
        return values
