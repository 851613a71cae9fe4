"""A micro-batch of Megatron-LM: its batch, its received input, gradients that go to main gradients. [M15]"""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.program.megatron.model import OUTPUT_LAYER
from gpuledger.program.model import Program
from gpuledger.program.program import Moves, Op, Part
from gpuledger.program.tensor import Tensor

from ...group_timeline import GroupTimeline
from ...schedule import Step, schedule
from .bindings import Bindings


class MegatronTimeline(GroupTimeline):
    """One chunk of one rank. Without bindings, what is bound between passes is the caller's account."""

    def __init__(self, program: Program, workspaces: Iterable[Tensor] = (),
                 bindings: Bindings | None = None, chunk: int = 0):
        super().__init__(program, workspaces)
        self.bindings, self.chunk = bindings, chunk
        self.batch_numbers: list[int] = []

    def earlier_gradients(self, *, kept: bool, only: set[Tensor] | None = None) -> None:
        """Main gradients are there all the time."""

    def store(self, parameter: Tensor, number: int) -> None:
        """The gradient was added to the main gradient."""
        bindings = self.bindings
        if (bindings is not None and bindings.options.defer_embedding_wgrad_compute
                and parameter.name == "output_layer.weight"):
            bindings.store_deferred(number)
        else:
            self.memory.drop(number)

    def forward_pass(self) -> None:
        self.batch_numbers = [self.memory.allocate(t, "activations") for t in self.program.batch]
        super().forward_pass()
        if self.bindings is not None:
            self.bindings.end_forward()
            if not self.program.sends:
                self.bindings.report()

    def receive(self, activation: Tensor) -> None:
        if self.bindings is None:
            super().receive(activation)
            return
        number = self.bindings.receive(activation)
        self.memory.current[activation] = number
        self.bindings.begin_forward(self.chunk, number)

    def send_back(self) -> None:
        received, bindings = self.program.received, self.bindings
        if received is None or bindings is None:
            super().send_back()
        else:
            gradient = self.pending.pop(received).number
            bindings.end_backward(self.chunk, self.memory.current[received], gradient)
        if bindings is not None and bindings.options.keeps_batches:
            bindings.batches += self.batch_numbers
        else:
            self.memory.drop(*self.batch_numbers)

    def run(self, op: Op, *, saving: bool) -> None:
        if self.bindings is not None:
            self.bindings.request(op)
        super().run(op, saving=saving)

    def recompute(self, region: Part) -> None:
        """All of it runs again: Megatron's own checkpoint does not stop early, and its backward holds the
        output. Ref: megatron/core/tensor_parallel/random.py (CheckpointFunction). [M18]"""
        self.recomputed.add(region)
        steps = schedule(region)
        output = steps[-1].op.writes[0]
        for step in steps:
            self.run(step.op, saving=True)
            self.release(tensor for tensor in step.releases if tensor is not output)
        self.checkpoints[region].append(self.memory.current[output.storage])

    def postpone(self, step: Step, moves: Moves, held: list[int]) -> tuple[Tensor, ...]:
        """The output layer's weight gradient may wait, with its input and its gradient. [M19]"""
        bindings = self.bindings
        if bindings is None or step.op.name != OUTPUT_LAYER or not bindings.defers:
            return ()
        self.split = True
        weights = super().postpone(step, moves, held)
        self.split = False
        bindings.deferred.append(self.deferred.pop())
        return weights
