"""A micro-batch of Megatron-LM: its batch, its received input, gradients that go to main gradients. [M15]"""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.program.megatron.model import OUTPUT_LAYER
from gpuledger.program.model import Program
from gpuledger.program.program import Moves, Op, Part
from gpuledger.program.tensor import Tensor

from ...group_timeline import GroupTimeline
from ...schedule import Step, schedule
from .bindings import ONE_NUMBER, Bindings

SENT = Tensor("sent output, of one element", (1,), "bfloat16", "scratch")


class MegatronTimeline(GroupTimeline):
    """One chunk of one rank. Without bindings, what is bound between passes is the caller's account.

    interleaved: the schedule keeps a micro-batch's loss from forward to backward; otherwise it is bound.
    """

    def __init__(self, program: Program, bindings: Bindings | None = None, chunk: int = 0, *,
                 interleaved: bool = False, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.bindings, self.chunk, self.interleaved = bindings, chunk, interleaved
        self.own: list[int] = []  # batch and output of a micro-batch
        self.waits = False  # the weight gradient of the output layer, of this backward pass

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
        """An output that was sent leaves a tensor of one element in its place."""
        self.own = [self.memory.allocate(t, "activations") for t in self.program.batch]
        super().forward_pass()
        self.memory.layer = None
        if self.bindings is not None:
            self.bindings.end_forward()
            if not self.program.sends:
                self.bindings.report()
        if self.program.sends:
            self.own.append(self.memory.allocate(SENT))
        elif self.interleaved:
            self.own.append(self.memory.allocate(ONE_NUMBER))

    def receive(self, activation: Tensor) -> None:
        if self.bindings is None:
            super().receive(activation)
            return
        number = self.bindings.receive(self.chunk, activation)
        self.memory.current[activation] = number
        self.bindings.begin_forward(self.chunk, number)

    def first_gradient(self, loss: Tensor) -> int:
        if self.bindings is None or not self.program.sends:
            return super().first_gradient(loss)
        return self.bindings.receive_gradient(self.chunk, loss.gradient())

    def send_back(self) -> None:
        received, bindings = self.program.received, self.bindings
        if received is None or bindings is None:
            super().send_back()
        else:
            gradient, number = self.pending.pop(received).number, self.memory.current[received]
            if self.waits:
                bindings.keep_leaf(number, gradient)
            self.waits = False
            bindings.end_backward(self.chunk, number, gradient)
        batch, output = self.own[:len(self.program.batch)], self.own[len(self.program.batch):]
        self.memory.drop(*output)
        if bindings is not None and bindings.options.keeps_batches:
            bindings.batches += batch
        else:
            self.memory.drop(*batch)

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
        self.waits = True
        return weights
