"""ZeRO: what data-parallel ranks divide, and a timeline in which gradients and weights are divided.

Each tensor is divided by itself: a rank keeps ceil(numel / dp) elements, and what dp times that exceeds
the tensor is padding, named as such. [Z1] These are the states and gathers alone, without any framework's
buckets or prefetching. Ref: ZeRO (1910.02054) section 5.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.program.model import Program
from gpuledger.program.program import Op, Part
from gpuledger.program.sizes import Size, ceil_div
from gpuledger.program.tensor import ITEMSIZE, Tensor

from .schedule import Step
from .timeline import Timeline


@dataclass(frozen=True)
class Division:
    """stage 1 divides optimizer states, 2 gradients too, 3 parameters too, over dp ranks."""

    stage: int = 0
    dp: int = 1

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
        if not self.divides(stage) or len(tensor.shape) == 0:
            return 0
        elements = self.dp * ceil_div(tensor.numel, self.dp) - tensor.numel
        return elements * ITEMSIZE[tensor.dtype]


UNDIVIDED = Division()


class ZeroTimeline(Timeline):
    """A timeline on one of dp ranks.

    Stage 2: a finished gradient is reduced and scattered, and the whole one freed. [Z2]
    Stage 3: the weights of each outermost part (embedding, block, head) are gathered when it is entered,
    forward and backward, and freed when it is left. [Z3]
    `positions` says which operator each stretch of the events belongs to.
    """

    def __init__(self, program: Program, division: Division, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.division = division
        self.positions: list[tuple[int, Step | None]] = []
        self.group: Part | None = None
        self.gathered: list[int] = []
        self.group_weights = self._weights_by_group() if division.divides(3) else {}

    def _weights_by_group(self) -> dict[Part | None, dict[Tensor, None]]:
        weights: dict[Part | None, dict[Tensor, None]] = {}
        for step in self.steps:
            members = weights.setdefault(step.group, {})
            members.update((t, None) for t in step.op.reads if t.parameter)
        return weights

    def enter(self, step: Step) -> None:
        if step.group is not self.group:
            self._gather(step)
        super().enter(step)
        self.positions.append((len(self.memory.events), step))

    def run(self, op: Op, *, saving: bool) -> None:
        self.memory.equation = op.equation
        super().run(op, saving=saving)

    def differentiate(self, step: Step) -> None:
        self.memory.equation = step.op.equation
        super().differentiate(step)

    def leave(self) -> None:
        self.memory.drop(*self.gathered)
        self.gathered, self.group = [], None
        super().leave()
        self.positions.append((len(self.memory.events), None))

    def _gather(self, step: Step) -> None:
        self.memory.drop(*self.gathered)
        self.memory.layer = step.layer
        self.group = step.group
        self.memory.equation = "Z3"
        weights = self.group_weights.get(step.group, {})
        self.gathered = [self.memory.allocate(w.like(f"gathered {w.name}"), "buffers") for w in weights]

    def store(self, parameter: Tensor, number: int) -> None:
        if self.division.divides(2):
            memory = self.memory
            shard = memory.allocate(self.division.part(memory.tensors[number], 2), "gradients")
            memory.drop(number)
            number = shard
        super().store(parameter, number)
