"""A Megatron run as one stream: build the model and its buffers, then whole steps of one rank. [M16]"""

from __future__ import annotations

from gpuledger.config.run import Run
from gpuledger.program.device import Device
from gpuledger.program.model import Program
from gpuledger.program.tensor import Tensor

from ...ledger import Memory
from ...pipeline.runner import OF_ONE_MICRO_BATCH, Flight, repeating_micro_batches, stage_order
from ...pipeline.schedules import FORWARD, Pass
from ...repeated import Repetitions
from ...schedule import Step
from .arrivals import arrivals_of
from .bindings import Bindings
from .bound import arriving
from .overheads import (
    SCALARS_OF_A_STEP,
    cublas_workspaces,
    engine_workspace,
    kept_biases,
    scalars,
)
from .states import RankStates, chunks_of
from .timeline import MegatronTimeline

OF_A_FLIGHT = (*OF_ONE_MICRO_BATCH, "own")


class MegatronRunner:
    """Runs steps of one rank; `programs` are its chunks with all their layers.

    dp_rank: which of the ranks that divide the optimizer. Interface of StepRunner, as far as streams need
    it: memory, timeline (marks and positions of all chunks), step.
    """

    def __init__(self, run: Run, programs: list[Program], order: list[Pass], stage: int = 0,
                 dp_rank: int = 0):
        self.run, self.order, self.options = run, order, run.parallel.megatron
        device = programs[0].tape.device
        chunks = chunks_of([p.weights for p in programs], run)
        self.rank = RankStates(chunks, run.parallel, stage, dp_rank)
        self.memory = Memory()
        self.programs = programs
        self.arrivals = arrivals_of(run, stage, 1 + max(step.micro_batch for step in order))
        self.bindings = Bindings(self.memory, len(programs) == 1, self.options)
        self.marks: list[tuple[int, str]] = []
        self.positions: list[tuple[int, Step | None]] = []
        workspaces = dict(zip((False, True), cublas_workspaces(self.options, device), strict=True))
        self.timelines = [self._timeline(p, i, workspaces) for i, p in enumerate(programs)]
        self.timeline = self.timelines[0]
        self.flights: dict[tuple[int, int], Flight] = {}
        self.moments: list[int] = []
        self.copies: list[int] = []
        self.repetitions: Repetitions | None = None
        self._build(device)

    def _timeline(self, program: Program, chunk: int,
                  workspaces: dict[bool, Tensor]) -> MegatronTimeline:
        timeline = MegatronTimeline(program, self.bindings, chunk, interleaved=len(self.programs) > 1)
        timeline.memory, timeline.workspaces = self.memory, workspaces
        timeline.marks, timeline.positions = self.marks, self.positions
        return timeline

    def _build(self, device: Device) -> None:
        """Model, buffers, main parameters, each through a 16-bit clone. Ref: optimizer.py."""
        memory, rank = self.memory, self.rank
        workspace = engine_workspace(self.options, device)
        if workspace is not None:
            memory.allocate(workspace, "buffers")
        made = [(w, memory.allocate(w.like(w.name), "parameters"))
                for chunk in rank.chunks for w in chunk.weights]
        for program in self.programs:
            for table in program.tape.tables[:1]:
                memory.allocate(table)
        parameters = rank.parameters().tensors
        unused = {w.name for w in kept_biases(self.options, (w for w, _ in made))}
        for i, (chunk, gradients) in enumerate(zip(rank.chunks, rank.gradients().tensors, strict=True)):
            if rank.distributed:
                memory.allocate(parameters[i], "parameters")
            memory.allocate(gradients, "gradients")
            if rank.distributed:
                memory.drop(*(number for w, number in made if any(w is v for v in chunk.weights)
                              and f"unused {w.name}" not in unused))
        masters = () if self.options.use_precision_aware_optimizer else rank.masters().tensors
        for (weight, numel), master in zip(rank.order, masters, strict=False):
            clone = memory.allocate(Tensor("clone", (numel,), weight.dtype), "optimizer")
            memory.allocate(master, "optimizer")
            memory.drop(clone)
        for scalar in scalars(self.options)[SCALARS_OF_A_STEP:]:
            memory.allocate(scalar, "buffers")

    def step(self, *, first: bool = False) -> None:
        """zero_grad, micro-batches, update."""
        self.memory.drop(*self.copies)
        self.copies = []
        self.bindings.begin_step()
        self.bindings.count_tokens()
        for number, step in enumerate(self.order):
            for arrival in self.arrivals.get(number, ()):
                self.bindings.arrive(arrival, arriving(arrival, self.programs))
            self.run_pass(step)
        self.mark("optimizer step")
        self.bindings.end_step()
        self.update()
        self.mark("zero grad")

    def mark(self, instant: str) -> None:
        self.marks.append((len(self.memory.events), instant))

    def run_pass(self, step: Pass) -> None:
        """One pass of one micro-batch."""
        timeline, between = self.timelines[step.chunk], self.memory.current
        for table in self.programs[step.chunk].tape.tables[1:]:
            if table.storage not in self.memory.current:   # the first micro-batch makes it
                self.memory.allocate(table)
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
            self.make_states()
            for scalar in scalars(self.options)[:SCALARS_OF_A_STEP]:
                memory.allocate(scalar, "buffers")
        for group in rank.unscaled():
            memory.drop(*[memory.allocate(tensor, "optimizer") for tensor in group])

    def make_states(self) -> None:
        """Per shard both moments, and with the precision-aware optimizer its main parameters and scales."""
        kept = [*self.rank.moments()]
        if self.options.use_precision_aware_optimizer:
            kept.append(self.rank.masters())
        for states in zip(*(k.tensors for k in kept), strict=True):
            self.moments += [self.memory.allocate(tensor, "optimizer") for tensor in states]
        self.moments += [self.memory.allocate(t, "optimizer") for t in self.rank.scales().tensors]


def megatron_run(run: Run, programs: list[Program], steps: int, stage: int = 0) -> MegatronRunner:
    """A run of so many steps from an empty allocator, on the first of the ranks that divide the optimizer.

    A step has the micro-batches after which everything repeats; all of them where they pile up.
    """
    options = run.parallel.megatron
    piles_up = options.keeps_batches or options.defer_embedding_wgrad_compute
    runner = MegatronRunner(
        run, programs, stage_order(run, stage, None if piles_up else repeating_micro_batches(run)), stage)
    for _ in range(steps):
        runner.step()
    return runner
