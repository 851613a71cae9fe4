"""A micro-batch of Megatron-LM: its batch, its received input, gradients that go to main gradients. [M15]

The schedule and the model bind more than they need: the last input of a chunk and its gradient stay bound
(`decoder.input_tensor`, and the schedule's `input_tensor_grad`) until another takes their place.
Ref: Megatron-LM megatron/core/pipeline_parallel/schedules.py,
megatron/core/transformer/transformer_block.py (set_input_tensor).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuledger.program.model import Program
from gpuledger.program.program import Op
from gpuledger.program.tensor import Tensor

from ...group_timeline import GroupTimeline
from ...ledger import Memory


@dataclass
class Bindings:
    """What schedule and model of one rank keep bound between passes. One chunk: the previous input lives
    until the next forward has run (the last graph still holds it)."""

    memory: Memory
    single_chunk: bool
    gradient: int | None = None
    bound: dict[int, tuple[int, int]] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    previous: int | None = None
    prefetched: int | None = None
    keeps_batches: bool = False
    batches: list[int] = field(default_factory=list)
    shared_buffer: tuple[int, int] | None = None  # bytes, number of the allocation

    def begin_forward(self, chunk: int, received: int) -> None:
        """The chunk's decoder gets another input."""
        self.latest[chunk] = received
        old = self.bound.pop(chunk, None)
        if old is None:
            return
        if self.single_chunk:
            self.previous = old[0]
        else:
            self.memory.drop(old[0])
        self.memory.drop(old[1])

    def end_forward(self) -> None:
        if self.previous is not None:
            self.memory.drop(self.previous)
            self.previous = None

    def end_backward(self, chunk: int, received: int, gradient: int) -> None:
        """The schedule's variable gets another gradient; the latest input keeps its own."""
        if self.gradient is not None:
            self.memory.drop(self.gradient)
        self.gradient = gradient
        if self.latest[chunk] == received:
            self.bound[chunk] = received, self.memory.hold(gradient)
        else:
            self.memory.drop(received)

    def end_step(self) -> None:
        if self.gradient is not None:
            self.memory.drop(self.gradient)
            self.gradient = None

    def request(self, tensor: Tensor) -> None:
        """The global buffer grows to what is asked for: a new one, then the old one goes."""
        nbytes, old = self.shared_buffer or (0, None)
        if tensor.nbytes > nbytes:
            number = self.memory.allocate(tensor, "buffers")
            if old is not None:
                self.memory.drop(old)
            self.shared_buffer = int(tensor.nbytes), number


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
        self.memory.drop(number)

    def forward_pass(self) -> None:
        self.batch_numbers = [self.memory.allocate(t, "activations") for t in self.program.batch]
        super().forward_pass()
        if self.bindings is not None:
            self.bindings.end_forward()

    def receive(self, activation: Tensor) -> None:
        bindings = self.bindings
        if bindings is None:
            super().receive(activation)
            return
        if bindings.prefetched is None:
            number = self.memory.allocate(activation)
        else:
            number, bindings.prefetched = bindings.prefetched, None
            self.memory.current[activation] = number
        bindings.begin_forward(self.chunk, number)

    def send_back(self) -> None:
        received, bindings = self.program.received, self.bindings
        if received is None or bindings is None:
            super().send_back()
        else:
            gradient = self.pending.pop(received).number
            bindings.end_backward(self.chunk, self.memory.current[received], gradient)
        if bindings is not None and bindings.keeps_batches:
            bindings.batches += self.batch_numbers
        else:
            self.memory.drop(*self.batch_numbers)

    def run(self, op: Op, *, saving: bool) -> None:
        if self.bindings is not None:
            for tensor in op.reads:
                if tensor.role == "shared_buffer":
                    self.bindings.request(tensor)
        super().run(op, saving=saving)
