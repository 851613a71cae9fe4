"""What schedule and model of a Megatron rank keep bound between passes. [M15]

The last input of a chunk and its gradient stay bound (`decoder.input_tensor`, and the schedule's
`input_tensor_grad`) until another takes their place; so does, without interleaving, the gradient that the
next stage sent last (`output_tensor_grad`).
Ref: Megatron-LM megatron/core/pipeline_parallel/schedules.py,
megatron/core/transformer/transformer_block.py (set_input_tensor).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.config.megatron import MegatronOptions
from gpuledger.program.program import Op
from gpuledger.program.tensor import Tensor

from ...autograd import Deferred
from ...ledger import Memory
from .arrivals import Arrival

ONE_NUMBER = Tensor("number of the schedule", (1,), "float32", "scratch")
REPORT = Tensor("reported loss and tokens", (2,), "float32", "scratch")


@dataclass
class Bindings:
    """One rank's. One chunk: the previous input lives until the next forward has run (the last graph still
    holds it)."""

    memory: Memory
    single_chunk: bool
    options: MegatronOptions
    gradient: int | None = None
    output_gradient: int | None = None
    bound: dict[int, tuple[int, int]] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    previous: int | None = None
    waiting: dict[Arrival, list[int]] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    shared_buffer: tuple[int, int] | None = None  # bytes, number of the allocation
    deferred: list[Deferred] = field(default_factory=list)
    deferred_gradient: int | None = None
    leaves: list[int] = field(default_factory=list)
    reports: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # the loss and the count of tokens of a micro-batch
    total: int | None = None

    def arrive(self, arrival: Arrival, tensor: Tensor) -> None:
        """An input or a gradient is received before its pass begins."""
        self.waiting.setdefault(arrival, []).append(self.memory.allocate(tensor))

    def receive(self, chunk: int, activation: Tensor) -> int:
        """The next input of a chunk, which may be there already."""
        waiting = self.waiting.get(Arrival(chunk, gradient=False))
        return waiting.pop(0) if waiting else self.memory.allocate(activation)

    def receive_gradient(self, chunk: int, gradient: Tensor) -> int:
        """The next gradient of a chunk's output; without interleaving the schedule keeps the last one."""
        waiting = self.waiting.get(Arrival(chunk, gradient=True))
        number = waiting.pop(0) if waiting else self.memory.allocate(gradient)
        if self.single_chunk:
            old, self.output_gradient = self.output_gradient, self.memory.hold(number)
            if old is not None:
                self.memory.drop(old)
        return number

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

    def count_tokens(self) -> None:
        """The schedule begins: it sums the tokens of the step."""
        self.total = self.memory.allocate(ONE_NUMBER)

    def report(self) -> None:
        """The loss function returns: what is reported is kept to the end of the step. Without interleaving
        loss and tokens are kept until the next micro-batch's take their place. Ref: pretrain_gpt.py
        (loss_func), schedules.py (forward_step)."""
        memory = self.memory
        made = [memory.allocate(ONE_NUMBER) for _ in range(2)] if self.single_chunk else []
        self.reports.append(memory.allocate(REPORT))
        memory.drop(*self.numbers)
        self.numbers = made

    def end_step(self) -> None:
        """The schedule returns; then the weight gradients that waited are formed."""
        memory = self.memory
        for number in (self.gradient, self.output_gradient, self.total):
            if number is not None:
                memory.drop(number)
        memory.drop(*self.reports, *self.numbers)
        self.gradient = self.output_gradient = self.total = None
        self.reports, self.numbers = [], []
        for waited in self.deferred:
            (weight,) = waited.weights
            number = memory.allocate(weight.gradient())
            memory.drop(*waited.held)
            self.store_deferred(number)
        memory.drop(*self.leaves)
        self.deferred, self.leaves = [], []

    def begin_step(self) -> None:
        """The data iterator lets go of the step's batches."""
        self.memory.drop(*self.batches)
        self.batches = []

    @property
    def defers(self) -> bool:
        """The next weight gradient of the output layer waits. [M19]"""
        options = self.options
        return options.defer_embedding_wgrad_compute and (
            not options.wgrad_deferral_limit or len(self.deferred) < options.wgrad_deferral_limit)

    def keep_leaf(self, received: int, gradient: int) -> None:
        """The output layer's input that waits is an autograd tensor: its graph holds the chunk's input, whose
        `.grad` is the gradient that was sent back."""
        self.leaves += [self.memory.hold(received), self.memory.hold(gradient)]

    def store_deferred(self, number: int) -> None:
        """A gradient of the output layer's weight was added to the main gradient."""
        if not self.options.keeps_deferred_gradient:
            self.memory.drop(number)
            return
        if self.deferred_gradient is not None:
            self.memory.drop(self.deferred_gradient)
        self.deferred_gradient = number

    def request(self, op: Op) -> None:
        """The global buffer grows to what an operator asks for: a new one, then the old one goes."""
        for tensor in op.reads:
            nbytes, old = self.shared_buffer or (0, None)
            if tensor.role == "shared_buffer" and tensor.nbytes > nbytes:
                number = self.memory.allocate(tensor, "buffers")
                if old is not None:
                    self.memory.drop(old)
                self.shared_buffer = int(tensor.nbytes), number
