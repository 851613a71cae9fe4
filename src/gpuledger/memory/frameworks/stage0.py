"""DeepSpeed's stage 0: nothing is divided; gradients are all-reduced after backward. [D14]

With bf16 and an optimizer of PyTorch's the engine wraps it in FP16_UnfusedOptimizer: fp32 masters
parameter by parameter. (FusedAdam, an operator that DeepSpeed compiles, gets FP16_Optimizer instead, whose
masters are one flat tensor of the same bytes.)
Ref: deepspeed/runtime/engine.py (buffered_allreduce_fallback), fp16/unfused_optimizer.py, DeepSpeed 0.19.8.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.config.training import Training
from gpuledger.program.model import Program
from gpuledger.program.reductions import reduce_all
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..group_timeline import GroupTimeline
from ..policy import Policy
from ..step import StepRunner
from .deepspeed_norm import largest_and_smallest

BUCKET_ELEMENTS = 500_000_000        # engine.py MEMORY_OPT_ALLREDUCE_SIZE


@dataclass(frozen=True)
class Stage0(Policy):
    """One rank; all keep everything."""

    equation = "D14"

    @property
    def walks_layers_once(self) -> bool:
        """Buckets span layers."""
        return False

    def computed(self, training: Training) -> Training:
        return training.model_copy(update={"set_to_none": True})

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> Stage0Timeline:
        return Stage0Timeline(program, workspaces)

    def runner(self, program: Program, training: Training, num_microbatches: int,
               workspaces: tuple[Tensor, ...] = ()) -> StepRunner:
        return Stage0Runner(program, training, num_microbatches, workspaces, self)


class Stage0Timeline(GroupTimeline):
    """After the last backward the gradients are flattened, reduced and copied back. [D14]"""

    def leave(self) -> None:
        super().leave()
        if not self.last_micro_batch:
            return
        self.memory.equation = "D14"
        bucket: list[Tensor] = []
        elements: Size = 0
        for weight in self.program.weights:
            bucket.append(weight)
            elements = elements + weight.numel
            if elements > BUCKET_ELEMENTS or weight is self.program.weights[-1]:
                self.reduce(bucket, elements)
                bucket, elements = [], 0

    def reduce(self, bucket: list[Tensor], elements: Size) -> None:
        """A single gradient is reduced where it lies."""
        if len(bucket) > 1:
            flat = Tensor("flattened gradients", (elements,), bucket[0].dtype)
            self.memory.drop(self.memory.allocate(flat, "buffers"))


class Stage0Runner(StepRunner):
    """Looks for inf, takes norms in fp32, then updates the masters by fp32 gradients of them all."""

    def update(self, *, first: bool) -> None:
        memory, device = self.memory, self.program.tape.device
        memory.equation = "D14"
        for weight in self.program.weights:
            memory.play(largest_and_smallest(weight, device), "optimizer")
        for weight in self.program.weights:
            single = weight.like("gradient in fp32", "float32")
            norm = Tensor("norm", (), "float32")
            partial, semaphores = reduce_all(weight.numel, device)
            memory.play((+single, +norm, +partial, +semaphores, -semaphores, -partial, -single, -norm),
                        "optimizer")
        self.optimizer_step(first=first)
