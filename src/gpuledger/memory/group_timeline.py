"""A timeline that knows in which outermost part (embedding, a block, head) an operator runs."""
from __future__ import annotations

from collections.abc import Iterable

from gpuledger.program.model import Program
from gpuledger.program.program import Op, Part
from gpuledger.program.tensor import Tensor

from .schedule import Step
from .timeline import Timeline


class GroupTimeline(Timeline):
    """Calls `change_group` when an operator of another outermost part begins, forward and backward.

    `positions` says which operator each stretch of the events belongs to; every allocation is
    tagged with the formula of its operator.
    """

    def __init__(self, program: Program, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.positions: list[tuple[int, Step | None]] = []
        self.group: Part | None = None

    def earlier_gradients(self, *, kept: bool, only: set[Tensor] | None = None) -> None:
        """The gradients of the step before (kept), or of earlier micro-batches, are there already.

        only: those of these weights.
        """
        memory = self.memory
        layers = self.program.tape.weight_layers
        for weight, layer in zip(self.program.weights, layers, strict=True):
            memory.layer = layer
            if weight in self.grads or (only is not None and weight not in only):
                continue
            self.grads[weight] = memory.allocate(self.earlier_gradient(weight), "gradients")
        memory.layer = None

    def earlier_gradient(self, weight: Tensor) -> Tensor:
        """What this rank holds of a weight's gradient."""
        return weight.gradient()

    def enter(self, step: Step) -> None:
        if step.group is not self.group:
            self.change_group(step)
            self.group = step.group
        super().enter(step)
        self.positions.append((len(self.memory.events), step))

    def change_group(self, step: Step) -> None:
        """`step` is the first operator of another part; `self.group` is the one that is left."""

    def run(self, op: Op, *, saving: bool) -> None:
        self.memory.equation = op.equation
        super().run(op, saving=saving)

    def differentiate(self, step: Step) -> None:
        self.memory.equation = step.op.equation
        super().differentiate(step)

    def leave(self) -> None:
        self.group = None
        super().leave()
        self.positions.append((len(self.memory.events), None))
