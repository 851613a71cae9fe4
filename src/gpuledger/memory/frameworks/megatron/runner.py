"""A Megatron run as one stream: build the model and its buffers, then whole steps of one rank. [M16]"""

from __future__ import annotations

from gpuledger.config.run import Run
from gpuledger.program.device import Device
from gpuledger.program.model import Program
from gpuledger.program.tensor import Tensor

from ...ledger import Memory
from ...pipeline.runner import (
    OF_ONE_MICRO_BATCH,
    Flight,
)
from ...pipeline.schedules import BACKWARD, FORWARD, Pass
from .overheads import cublas_workspaces, engine_workspace, kept_biases, scalars
from .stage import chunks_of
from .states import RankStates
from .timeline import Bindings, MegatronTimeline

OF_A_FLIGHT = (*OF_ONE_MICRO_BATCH, "batch_numbers")


class MegatronRunner:
    """Runs steps of one rank; `programs` are its chunks with all their layers.

    dp_rank: which of the ranks that divide the optimizer.
    """

    def __init__(self, run: Run, programs: list[Program], order: list[Pass], stage: int = 0,
                 dp_rank: int = 0):
        self.run, self.order, self.options = run, order, run.parallel.megatron
        device = programs[0].tape.device
        chunks = chunks_of(programs, [p.weights for p in programs], run)
        self.rank = RankStates(chunks, run.parallel, stage, dp_rank)
        self.memory = Memory()
        self.bindings = Bindings(self.memory, single_chunk=len(programs) == 1,
                                 keeps_batches=self.options.keeps_batches)
        self.marks: list[tuple[int, str]] = []
        workspaces = dict(zip((False, True), cublas_workspaces(self.options, device), strict=True))
        self.timelines = [self._timeline(p, i, workspaces) for i, p in enumerate(programs)]
        self.flights: dict[tuple[int, int], Flight] = {}
        self.moments: list[int] = []
        self.copies: list[int] = []
        self._build(device)

    def _timeline(self, program: Program, chunk: int,
                  workspaces: dict[bool, Tensor]) -> MegatronTimeline:
        timeline = MegatronTimeline(program, (), self.bindings, chunk)
        timeline.memory, timeline.marks, timeline.workspaces = self.memory, self.marks, workspaces
        return timeline

    def _build(self, device: Device) -> None:
        """Model, buffers, main parameters, each through a 16-bit clone. Ref: optimizer.py."""
        memory, rank = self.memory, self.rank
        workspace = engine_workspace(self.options, device)
        if workspace is not None:
            memory.allocate(workspace, "buffers")
        made = [(w, memory.allocate(w.like(w.name), "parameters"))
                for chunk in rank.chunks for w in chunk.weights]
        parameters = rank.parameters().tensors
        unused = {w.name for w in kept_biases(self.options, (w for w, _ in made))}
        for i, (chunk, gradients) in enumerate(zip(rank.chunks, rank.gradients().tensors, strict=True)):
            if rank.distributed:
                memory.allocate(parameters[i], "parameters")
            memory.allocate(gradients, "gradients")
            if rank.distributed:
                memory.drop(*(number for w, number in made if any(w is v for v in chunk.weights)
                              and f"unused {w.name}" not in unused))
        for (weight, numel), master in zip(rank.order, rank.masters().tensors, strict=True):
            clone = memory.allocate(Tensor("clone", (numel,), weight.dtype), "optimizer")
            memory.allocate(master, "optimizer")
            memory.drop(clone)
        for scalar in scalars(self.options):
            memory.allocate(scalar, "buffers")

    def step(self) -> None:
        """zero_grad, micro-batches, update."""
        memory = self.memory
        memory.drop(*self.bindings.batches, *self.copies)
        self.bindings.batches, self.copies = [], []
        for number, step in enumerate(self.order):
            if step.kind == BACKWARD:
                self.prefetch(number)
            self.run_pass(step)
        self.bindings.end_step()
        self.mark("optimizer step")
        self.update()

    def mark(self, instant: str) -> None:
        self.marks.append((len(self.memory.events), instant))

    def prefetch(self, number: int) -> None:
        """Interleaved with overlap: between a forward and a backward pass the input of the next forward is
        received already."""
        if len(self.timelines) == 1 or not self.options.overlap_p2p_communication:
            return
        after = self.order[number - 1].kind == FORWARD and self.order[number + 1:number + 2]
        if after and after[0].kind == FORWARD:
            received = self.timelines[after[0].chunk].program.received
            if received is not None:
                self.bindings.prefetched = self.memory.allocate(received)

    def run_pass(self, step: Pass) -> None:
        """One pass of one micro-batch."""
        timeline, between = self.timelines[step.chunk], self.memory.current
        key = step.chunk, step.micro_batch
        self.memory.current = {}
        if step.kind == FORWARD:
            timeline.forward_pass()
        else:
            flight = self.flights.pop(key)
            for name, value in flight.state.items():
                setattr(timeline, name, value)
            self.memory.current = flight.current
            timeline.backward_pass()
        timeline.leave()
        self.flights[key] = Flight({name: getattr(timeline, name) for name in OF_A_FLIGHT},
                                   self.memory.current)
        self.memory.current = between

    def update(self) -> None:
        """fp32 copies of 16-bit gradients; the moments appear at the first update."""
        memory, rank = self.memory, self.rank
        if rank.copies_gradients:
            self.copies = [memory.allocate(t, "gradients") for t in rank.gradient_copies().tensors]
        if not self.moments:
            for first, second in zip(*(kept.tensors for kept in rank.moments()), strict=True):
                self.moments += [memory.allocate(first, "optimizer"), memory.allocate(second, "optimizer")]
