"""What is bound beside each pass of a Megatron step: one walk in which nothing else comes and goes. [M15]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.config.megatron import MegatronOptions
from gpuledger.program.model import Program
from gpuledger.program.tensor import Tensor

from ...ledger import Memory
from ...pipeline.schedules import FORWARD, Pass
from .arrivals import Arrival, Arrivals
from .bindings import ONE_NUMBER, REPORT, Bindings


@dataclass(frozen=True)
class Bound:
    """Beside states, passes and waiting micro-batches: bytes of inputs and gradients, micro-batches that
    are over and whose batch (batch_bytes) is kept, single numbers, reports."""

    inputs_bytes: int
    batches: int
    batch_bytes: int
    numbers: int = 0
    reports: int = 0

    @property
    def nbytes(self) -> int:
        return (self.inputs_bytes + self.batches * self.batch_bytes
                + self.numbers * int(ONE_NUMBER.nbytes) + self.reports * int(REPORT.nbytes))


def arriving(arrival: Arrival, programs: Sequence[Program]) -> Tensor:
    """The tensor that is received."""
    program = programs[arrival.chunk]
    tensor = program.loss.gradient() if arrival.gradient else program.received
    assert tensor is not None
    return tensor


def bound_in_step(order: Sequence[Pass], arrivals: Arrivals, programs: Sequence[Program],
                  options: MegatronOptions) -> list[Bound]:
    """What is bound during each pass of a steady step, and after the last.

    A micro-batch that waits or runs is counted with its own input, batch and gradient, which are not here.
    """
    bindings = Bindings(Memory(), len(programs) == 1, options)
    for _ in range(2):
        walk = _BoundWalk(programs, bindings)
        for number, step in enumerate(order):
            for arrival in arrivals.get(number, ()):
                bindings.arrive(arrival, arriving(arrival, programs))
            walk.one_pass(step)
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
        """What is bound now."""
        bindings = self.bindings
        for sign, _, nbytes in self.memory.events[self.seen:]:
            self.live += sign * int(nbytes)
        self.seen = len(self.memory.events)
        numbers = len(bindings.numbers) + (bindings.total is not None)
        small = Bound(0, 0, 0, numbers, len(bindings.reports))
        self.found.append(Bound(self.live - self.own - small.nbytes, self.batches, self.batch_bytes,
                                small.numbers, small.reports))

    def one_pass(self, step: Pass) -> None:
        """A forward or a backward pass."""
        if step.kind == FORWARD:
            self.forward(step)
        else:
            self.backward(step)

    def forward(self, step: Pass) -> None:
        program, bindings = self.programs[step.chunk], self.bindings
        if program.received is not None:
            number = bindings.receive(step.chunk, program.received)
            self.running[step.chunk, step.micro_batch] = number
            self.own += int(program.received.nbytes)
            bindings.begin_forward(step.chunk, number)
        self.note()
        bindings.end_forward()
        if not program.sends:
            bindings.report()

    def backward(self, step: Pass) -> None:
        program, bindings = self.programs[step.chunk], self.bindings
        sent = program.loss.gradient() if program.sends else None
        number = bindings.receive_gradient(step.chunk, sent) if sent is not None else None
        self.own += int(sent.nbytes) if sent is not None else 0
        self.note()
        self.own -= int(sent.nbytes) if sent is not None else 0
        if number is not None:
            self.memory.drop(number)
        if program.received is not None:
            self.own -= int(program.received.nbytes)
            received = self.running.pop((step.chunk, step.micro_batch))
            gradient = self.memory.allocate(program.received.gradient())
            bindings.end_backward(step.chunk, received, gradient)
        if bindings.options.keeps_batches and program.batch:
            self.batches += 1
