"""ZeRO without a framework: what data-parallel ranks divide, and a timeline in which it is divided.

Each tensor is divided by itself: a rank keeps ceil(numel / dp) elements, and what dp times that
exceeds the tensor is padding, named as such. [Z1] These are the states and gathers alone, without
any framework's buckets or prefetching. Ref: ZeRO (1910.02054) section 5.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.program.model import Program
from gpuledger.program.program import Part
from gpuledger.program.sizes import Size, ceil_div
from gpuledger.program.tensor import ITEMSIZE, Tensor

from .group_timeline import GroupTimeline
from .policy import Counted, Policy, Share, whole
from .schedule import Step


@dataclass(frozen=True)
class Division(Policy):
    """stage 1 divides optimizer states, 2 gradients too, 3 parameters too, over dp ranks."""

    stage: int = 0
    dp: int = 1

    @property
    def divides_matrices(self) -> bool:
        return self.divides(1)

    def divides(self, stage: int) -> bool:
        """What this stage divides is divided (among more than one rank)."""
        return self.dp > 1 and self.stage >= stage

    def part(self, tensor: Tensor, stage: int) -> Tensor:
        """This rank's part of a tensor that `stage` divides: one-dimensional, padding included."""
        if not self.divides(stage) or len(tensor.shape) == 0:
            return tensor
        return Tensor(tensor.name, (ceil_div(tensor.numel, self.dp),), tensor.dtype, tensor.role)

    def padding_bytes(self, tensor: Tensor, stage: int) -> Size:
        """Bytes by which the parts of all ranks exceed the tensor."""
        return self.padding_elements(tensor, stage) * ITEMSIZE[tensor.dtype]

    def padding_elements(self, tensor: Tensor, stage: int) -> Size:
        """The same in elements."""
        if not self.divides(stage) or len(tensor.shape) == 0:
            return 0
        return self.dp * ceil_div(tensor.numel, self.dp) - tensor.numel

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> ZeroTimeline:
        return ZeroTimeline(program, self, workspaces)

    def parameters(self, weights: Counted) -> list[Share]:
        return self._shares(weights, 3)

    def updated(self, weights: Counted) -> list[Share]:
        return self._shares(weights, 1)

    def _shares(self, weights: Counted, stage: int) -> list[Share]:
        if not self.divides(stage):
            return whole(weights)
        over = f" / {self.dp} ranks"
        return [Share(self.part(weight, stage), count, weight.numel,
                      self.padding_elements(weight, stage), over) for weight, count in weights]

    def gradient(self, weight: Tensor) -> Tensor:
        return self.part(weight, 2)


UNDIVIDED = Division()


class ZeroTimeline(GroupTimeline):
    """A timeline on one of dp ranks.

    Stage 2: a finished gradient is reduced and scattered, and the whole one freed. [Z2]
    Stage 3: the weights of each outermost part (embedding, block, head) are gathered when it is
    entered, forward and backward, and freed when it is left. [Z3]
    """

    def __init__(self, program: Program, division: Division, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.division = division
        self.gathered: list[int] = []
        self.group_weights = self._weights_by_group() if division.divides(3) else {}

    def _weights_by_group(self) -> dict[Part | None, dict[Tensor, None]]:
        weights: dict[Part | None, dict[Tensor, None]] = {}
        for step in self.steps:
            members = weights.setdefault(step.group, {})
            members.update((t, None) for t in step.op.reads if t.parameter)
        return weights

    def earlier_gradient(self, weight: Tensor) -> Tensor:
        return self.division.part(weight.gradient(), 2)

    def change_group(self, step: Step) -> None:
        self.memory.drop(*self.gathered)
        self.memory.layer = step.layer
        self.memory.equation = "Z3"
        self.gathered = [self.memory.allocate(weight.like(f"gathered {weight.name}"), "buffers")
                         for weight in self.group_weights.get(step.group, {})]

    def leave(self) -> None:
        self.memory.drop(*self.gathered)
        self.gathered = []
        super().leave()

    def store(self, parameter: Tensor, number: int) -> None:
        if self.division.divides(2):
            memory = self.memory
            shard = memory.allocate(self.division.part(memory.tensors[number], 2), "gradients")
            memory.drop(number)
            number = shard
        super().store(parameter, number)
