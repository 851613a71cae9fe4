"""Whole steps of a pipeline stage as one stream: micro-batches of several chunks in flight at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.model import Program
from gpuledger.program.tensor import Tensor

from ..frameworks import policy_of
from ..group_timeline import GroupTimeline
from ..policy import Policy
from ..step import StepRunner
from .schedules import BACKWARD, FORWARD, SPLIT_BACKWARD, Pass, Pipeline, passes
from .stages import chunks_of_stage

OF_ONE_MICRO_BATCH = ("saved", "pending", "missing", "checkpoints", "recomputed", "kept", "deferred")


@dataclass(frozen=True)
class Flight:
    """What a timeline knows of a micro-batch that waits."""

    state: dict[str, Any]
    current: dict[Tensor, int]


class PipelineRunner(StepRunner):
    """Runs the passes of a schedule on one ledger; `programs` are the stage's chunks."""

    def __init__(
        self,
        programs: list[Program],
        training: Training,
        order: list[Pass],
        workspaces: tuple[Tensor, ...],
        policy: Policy,
    ):
        weights = tuple(w for program in programs for w in program.weights)
        micro_batches = 1 + max(step.micro_batch for step in order)
        super().__init__(
            replace(programs[0], weights=weights), training, micro_batches, workspaces, policy
        )
        self.order = order
        self.timelines = [self._timeline_of(program) for program in programs]
        self.flights: dict[tuple[int, int], Flight] = {}

    def _timeline_of(self, program: Program) -> GroupTimeline:
        """A timeline of one chunk, on the stage's ledger."""
        shared, timeline = self.timeline, self.policy.timeline(program)
        timeline.memory, timeline.marks, timeline.grads = shared.memory, shared.marks, shared.grads
        timeline.workspaces, timeline.scaler_state = shared.workspaces, shared.scaler_state
        return timeline

    def micro_batches(self) -> None:
        for step in self.order:
            self.run_pass(step)

    def run_pass(self, step: Pass) -> None:
        """One pass; what its micro-batch holds is put aside after it."""
        timeline, between = self.timelines[step.chunk], self.memory.current
        key = step.chunk, step.micro_batch
        self.memory.current = {}
        if step.kind != FORWARD:
            self.resume(timeline, key)
        timeline.split = step.splits
        run = {FORWARD: timeline.forward_pass, BACKWARD: timeline.backward_pass}.get(
            step.kind, timeline.weight_pass
        )
        run()
        timeline.leave()
        self.flights[key] = Flight(
            {name: getattr(timeline, name) for name in OF_ONE_MICRO_BATCH}, self.memory.current
        )
        self.memory.current = between

    def resume(self, timeline: GroupTimeline, key: tuple[int, int]) -> None:
        """Take up a micro-batch where its last pass left it."""
        flight = self.flights.pop(key)
        for name, value in flight.state.items():
            setattr(timeline, name, value)
        self.memory.current = flight.current


def stage_programs(run: Run, device: Device, stage: int) -> list[Program]:
    """The programs of a stage's chunks, all layers."""
    policy = policy_of(run.parallel)
    return [policy.build(run, device, part) for part in chunks_of_stage(run, stage)]


def repeating_micro_batches(run: Run) -> int:
    """How many micro-batches of a step show all that more would repeat: three rounds of the pipeline."""
    parallel = run.parallel
    return min(
        run.num_microbatches, 3 * max(parallel.pp, parallel.megatron.microbatch_group_size or 0)
    )


def stage_order(run: Run, stage: int, num_microbatches: int | None = None) -> list[Pass]:
    """The passes of one step of a stage."""
    parallel = run.parallel
    name = parallel.pipeline_schedule
    chunks = 2 if name in SPLIT_BACKWARD[1:] else parallel.vpp
    return passes(
        name,
        Pipeline(
            parallel.pp,
            stage,
            num_microbatches or run.num_microbatches,
            chunks,
            parallel.megatron.microbatch_group_size,
        ),
    )
