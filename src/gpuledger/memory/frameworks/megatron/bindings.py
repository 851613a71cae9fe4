"""What schedule and model of a Megatron rank keep bound between passes. [M15]

The last input of a chunk and its gradient stay bound (`decoder.input_tensor`, and the schedule's
`input_tensor_grad`) until another takes their place.
Ref: Megatron-LM megatron/core/pipeline_parallel/schedules.py,
megatron/core/transformer/transformer_block.py (set_input_tensor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuledger.config.megatron import MegatronOptions
from gpuledger.program.model import Program
from gpuledger.program.program import Op
from gpuledger.program.tensor import Tensor

from ...ledger import Memory
from ...pipeline.schedules import BACKWARD, FORWARD, Pass
from ...timeline import Deferred

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
    bound: dict[int, tuple[int, int]] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    previous: int | None = None
    prefetched: int | None = None
    batches: list[int] = field(default_factory=list)
    shared_buffer: tuple[int, int] | None = None  # bytes, number of the allocation
    deferred: list[Deferred] = field(default_factory=list)
    deferred_gradient: int | None = None
    reports: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # the loss and the count of tokens of a micro-batch
    total: int | None = None

    def receive(self, activation: Tensor) -> int:
        """The next input, which may be there already."""
        if self.prefetched is None:
            return self.memory.allocate(activation)
        number, self.prefetched = self.prefetched, None
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
        """The loss function returns: what is reported is kept to the end of the step, loss and tokens until
        the next micro-batch's take their place. Interleaved, the tokens' count dies and the loss is a
        chunk's output. Ref: pretrain_gpt.py (loss_func), schedules.py (forward_step)."""
        memory, kept = self.memory, 2 if self.single_chunk else 1
        made = [memory.allocate(ONE_NUMBER) for _ in range(kept)]
        self.reports.append(memory.allocate(REPORT))
        memory.drop(*self.numbers)
        self.numbers = made

    def end_step(self) -> None:
        """The schedule returns; then the weight gradients that waited are formed."""
        if self.gradient is not None:
            self.memory.drop(self.gradient)
            self.gradient = None
        self.memory.drop(*self.reports, *self.numbers, *([] if self.total is None else [self.total]))
        self.reports, self.numbers, self.total = [], [], None
        for waited in self.deferred:
            (weight,) = waited.weights
            number = self.memory.allocate(weight.gradient())
            self.memory.drop(*waited.held)
            self.store_deferred(number)
        self.deferred = []

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


def prefetched(order: Sequence[Pass], number: int, programs: Sequence[Program],
               options: MegatronOptions) -> Tensor | None:
    """Interleaved with overlap: before the backward pass with this number, right after a forward pass, the
    input of the next forward pass is received already."""
    if len(programs) == 1 or not options.overlap_p2p_communication or order[number].kind != BACKWARD:
        return None
    after = order[number - 1].kind == FORWARD and order[number + 1:number + 2]
    if not after or after[0].kind != FORWARD:
        return None
    return programs[after[0].chunk].received


@dataclass(frozen=True)
class Bound:
    """Bytes beside states, passes and waiting micro-batches."""

    inputs_bytes: int
    batches: int  # of micro-batches that are over
    batch_bytes: int  # of one micro-batch
    numbers: int = 0
    reports: int = 0

    @property
    def nbytes(self) -> int:
        return (self.inputs_bytes + self.batches * self.batch_bytes
                + self.numbers * int(ONE_NUMBER.nbytes) + self.reports * int(REPORT.nbytes))


def bound_in_step(order: Sequence[Pass], programs: Sequence[Program],
                  options: MegatronOptions) -> list[Bound]:
    """What is bound during each pass of a steady step, and after the last.

    A micro-batch that waits or runs is counted with its own input and batch, which are not in here.
    """
    bindings = Bindings(Memory(), len(programs) == 1, options)
    for _ in range(2):
        walk = _BoundWalk(programs, bindings)
        for number, step in enumerate(order):
            walk.one_pass(step, prefetched(order, number, programs, options))
        bindings.end_step()
        walk.note()
    return walk.found


class _BoundWalk:
    """One step in which nothing but inputs, their gradients and single numbers comes and goes."""

    def __init__(self, programs: Sequence[Program], bindings: Bindings):
        self.programs, self.bindings, self.memory = programs, bindings, bindings.memory
        self.found: list[Bound] = []
        self.running: dict[tuple[int, int], int] = {}
        self.own = self.batches = 0
        self.batch_bytes = sum(int(t.nbytes) for program in programs for t in program.batch)
        self.live = sum(int(n) for n, held in zip(self.memory.sizes, self.memory.holders, strict=True)
                        if held)
        self.seen = len(self.memory.events)
        bindings.count_tokens()

    def note(self) -> None:
        bindings = self.bindings
        for sign, _, nbytes in self.memory.events[self.seen:]:
            self.live += sign * int(nbytes)
        self.seen = len(self.memory.events)
        numbers = len(bindings.numbers) + (bindings.total is not None)
        small = Bound(0, 0, 0, numbers, len(bindings.reports))
        self.found.append(Bound(self.live - self.own - small.nbytes, self.batches, self.batch_bytes,
                                small.numbers, small.reports))

    def one_pass(self, step: Pass, ahead: Tensor | None) -> None:
        """A pass; `ahead` is received before it."""
        program, key = self.programs[step.chunk], (step.chunk, step.micro_batch)
        received, bindings = program.received, self.bindings
        if ahead is not None:
            bindings.prefetched = self.memory.allocate(ahead)
        if step.kind == FORWARD:
            if received is not None:
                self.running[key] = bindings.receive(received)
                self.own += int(received.nbytes)
                bindings.begin_forward(step.chunk, self.running[key])
            self.note()
            bindings.end_forward()
            if not program.sends:
                bindings.report()
            return
        self.note()
        if received is not None:
            self.own -= int(received.nbytes)
            bindings.end_backward(step.chunk, self.running.pop(key),
                                  self.memory.allocate(received.gradient()))
        if bindings.options.keeps_batches and program.batch:
            self.batches += 1
