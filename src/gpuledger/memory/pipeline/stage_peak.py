"""The peak of one pipeline stage: one micro-batch of each chunk is walked, the schedule says how many wait.

Micro-batches in flight do not share tensors. So the level at an event of one pass is what its own walk
says, plus what each micro-batch that waits holds (after its forward, or after a backward whose weight
gradients wait), plus the gradients that earlier passes left. No pass needs to be walked twice. [X18]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuledger.config.run import Run
from gpuledger.program.device import Device
from gpuledger.program.model import Stage
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..frameworks import policy_of
from ..group_timeline import GroupTimeline
from ..layers import layer_period
from ..peak import Live, Peak, StepPeak, live_of_update
from ..states import State, constants_of, kept_states, model_states, step_constants
from .runner import stage_order
from .schedules import BACKWARD, FORWARD, SPLIT_BACKWARD, WEIGHT, Pass, in_flight
from .stages import chunks_of_stage

WAITING = "in flight: "
NONE, SOME, ALL = "no gradients", "those of a split backward", "all gradients"


@dataclass(frozen=True)
class Phase:
    """One kind of pass in a walk: events begin to end, its highest level and the number of events up to
    it, and what is held at its end (both without gradients of earlier micro-batches)."""

    begin: int
    level: Size
    position: int
    held: Size
    end: int


class ChunkWalk(StepPeak):
    """One micro-batch of one model chunk, after others left no gradients, some of them, or all."""

    def __init__(self, run: Run, device: Device, part: Stage):
        super().__init__(run, device, part)
        self.splits = run.parallel.pipeline_schedule in SPLIT_BACKWARD
        self.walked: dict[tuple[str, bool], tuple[GroupTimeline, dict[str, Phase]]] = {}
        self.early: set[Tensor] = set()  # whose gradients a split backward does form

    def passes(self, earlier: str, *, split: bool) -> tuple[GroupTimeline, dict[str, Phase]]:
        """The walk and its phases; levels leave out gradients of earlier micro-batches."""
        key = earlier, split
        if key not in self.walked:
            self.walked[key] = self._walk_passes(earlier, split=split)
        return self.walked[key]

    def _walk_passes(self, earlier: str, *, split: bool) -> tuple[GroupTimeline, dict[str, Phase]]:
        timeline = self.timeline_after(earlier)
        timeline.split = split
        gradients = self._level_at_end(timeline.memory)
        phases, start = {}, len(timeline.memory.events)
        for kind, run_pass in (
            (FORWARD, timeline.forward_pass),
            (BACKWARD, timeline.backward_pass),
            (WEIGHT, timeline.weight_pass),
        ):
            if kind == WEIGHT and not split:
                break
            run_pass()
            timeline.leave()
            if split and kind == BACKWARD and earlier == NONE:
                self.early = set(timeline.grads)
            level, position = self._highest(timeline.memory, start)
            held = self._level_at_end(timeline.memory) - gradients
            phases[kind] = Phase(
                start, level - gradients, position, held, len(timeline.memory.events)
            )
            start = phases[kind].end
        return timeline, phases

    def timeline_after(self, earlier: str) -> GroupTimeline:
        """A timeline that holds the gradients that earlier micro-batches left."""
        if earlier == SOME:
            self.passes(NONE, split=True)  # finds out which
        timeline = self.policy.timeline(self.program)
        if earlier == ALL:
            timeline.earlier_gradients(kept=False)
        elif earlier == SOME:
            timeline.earlier_gradients(kept=False, only=self.early)
        return timeline

    def held(self, kind: str) -> Size:
        """What a micro-batch that waits after this pass holds, without gradients."""
        _, phases = self.passes(ALL, split=self.splits)
        return phases[kind].held

    def live_at(self, timeline: GroupTimeline, position: int) -> list[Live]:
        """Entries after so many events of a walk."""
        return self._live(timeline.memory, position)

    def live_held(self, kind: str, count: int) -> list[Live]:
        """Entries of `count` micro-batches that wait."""
        timeline, phases = self.passes(ALL, split=self.splits)
        entries = self._live(timeline.memory, phases[kind].end, phases[FORWARD].begin)
        return [
            replace(
                entry,
                name=WAITING + entry.name,
                count=count * entry.count,
                nbytes=count * entry.nbytes,
                detail=f"{count} micro-batches of {entry.detail}",
            )
            for entry in entries
        ]

    def gradient_entries(self, earlier: str) -> list[Live]:
        """The gradients that earlier micro-batches left."""
        timeline = self.timeline_after(earlier)
        return self.live_at(timeline, len(timeline.memory.events))

    def name_of(self, timeline: GroupTimeline, position: int, first_layer: int) -> str:
        """The name of a position, in a part of the model that begins with this block."""
        return self._instant(timeline, position, first_layer)


Walks = dict[tuple[object, ...], ChunkWalk]  # of the stages of one run, like parts walked once


def walk_of(run: Run, device: Device, part: Stage, walks: Walks) -> ChunkWalk:
    """The walk of a part of the model, or of another part that is like it."""
    period = layer_period(run.model, run.training)
    key = (part.num_layers, part.embedding, part.head, part.first_layer % period)
    if key not in walks:
        walks[key] = ChunkWalk(run, device, part)
    return walks[key]


class StagePeak:
    """Finds the peak of one stage of a pipeline. Interface of StepPeak."""

    def __init__(self, run: Run, device: Device, stage: int, walks: Walks | None = None):
        self.run, self.device, self.stage = run, device, stage
        self.policy = policy_of(run.parallel)
        self.training = self.policy.computed(run.training)
        self.parts = chunks_of_stage(run, stage)
        walks = {} if walks is None else walks
        self.chunks = [walk_of(run, device, part, walks) for part in self.parts]
        self.gradients_bytes: dict[tuple[int, str], Size] = {}
        self.weights = tuple(w for chunk in self.chunks for w in chunk.weights)
        self.counted = [item for chunk in self.chunks for item in chunk.counted]
        self.states = self._kept()

    def _kept(self) -> tuple[State, ...]:
        """What lives through the whole step."""
        return (
            *model_states(self.counted, self.training, self.policy),
            *kept_states(self.policy.kept(self.weights, self.training)),
            *step_constants(*constants_of(self.run), self.device),
        )

    @property
    def states_bytes(self) -> Size:
        """Bytes of this stage that live through the whole step."""
        return sum(state.nbytes for state in self.states)

    def find(self) -> Peak:
        """The highest level of any pass, or of the update after them."""
        best = max(self._moments(), key=lambda moment: moment.level)
        update = self._update()
        if update.requested_bytes > best.level + self.states_bytes:
            return update
        return self._peak_of(best)

    def _peak_of(self, best: Moment) -> Peak:
        """The account of a moment."""
        chunk = self.chunks[best.step.chunk]
        timeline, phases = chunk.passes(best.earlier, split=best.split)
        position = phases[best.step.kind].position
        instant = chunk.name_of(timeline, position, self.parts[best.step.chunk].first_layer)
        live = (*chunk.live_at(timeline, position), *self._waiting(best))
        return Peak(int(self.states_bytes + best.level), instant, live, self.states)

    def _moments(self) -> Iterator[Moment]:
        """Each pass of the step with the highest level in it; equal ones once."""
        seen: set[object] = set()
        kept = NONE if self.training.set_to_none else ALL
        left = dict.fromkeys(range(len(self.chunks)), kept)
        for step, forwarded, waiting in in_flight(stage_order(self.run, self.stage)):
            key = (
                step.kind,
                step.chunk,
                step.splits,
                tuple(sorted(forwarded.items())),
                tuple(sorted(waiting.items())),
                tuple(left.values()),
            )
            if key not in seen:
                seen.add(key)
                yield self._moment(step, forwarded, waiting, dict(left))
            if step.kind == WEIGHT or (step.kind == BACKWARD and not step.splits):
                left[step.chunk] = ALL
            elif step.kind == BACKWARD and left[step.chunk] == NONE:
                left[step.chunk] = SOME

    def _moment(
        self, step: Pass, forwarded: dict[int, int], waiting: dict[int, int], left: dict[int, str]
    ) -> Moment:
        moment = Moment(0, step, forwarded, waiting, left)
        _, phases = self.chunks[step.chunk].passes(moment.earlier, split=moment.split)
        level = phases[step.kind].level
        level += sum(n * self.chunks[c].held(FORWARD) for c, n in forwarded.items() if n)
        level += sum(n * self.chunks[c].held(BACKWARD) for c, n in waiting.items() if n)
        level += sum(self._gradients(c, earlier) for c, earlier in left.items())
        return replace(moment, level=level)

    def _gradients(self, chunk: int, earlier: str) -> Size:
        key = chunk, earlier
        if key not in self.gradients_bytes:
            entries = self.chunks[chunk].gradient_entries(earlier)
            self.gradients_bytes[key] = sum(entry.nbytes for entry in entries)
        return self.gradients_bytes[key]

    def _waiting(self, moment: Moment) -> Iterator[Live]:
        """Entries of the micro-batches that wait at a moment, and of other chunks' gradients."""
        for counts, kind in ((moment.forwarded, FORWARD), (moment.waiting, BACKWARD)):
            for c, n in counts.items():
                if n:
                    yield from self.chunks[c].live_held(kind, n)
        for c, earlier in moment.left.items():
            if c != moment.step.chunk:
                yield from self.chunks[c].gradient_entries(earlier)

    def _update(self) -> Peak:
        """The optimizer's step: all gradients, and its temporaries."""
        entries = [e for chunk in self.chunks for e in chunk.gradient_entries(ALL)]
        runner, level, position = self.chunks[0].update_of(self.weights)
        live = (*entries, *live_of_update(runner.memory, position))
        total = self.states_bytes + level + sum(e.nbytes for e in entries)
        return Peak(int(total), "optimizer step", live, self.states)


@dataclass(frozen=True)
class Moment:
    """A pass, what waits beside it, and the gradients that each chunk has by then."""

    level: Size
    step: Pass
    forwarded: dict[int, int]
    waiting: dict[int, int]
    left: dict[int, str]

    @property
    def earlier(self) -> str:
        """Gradients of the pass's own chunk."""
        return self.left[self.step.chunk]

    @property
    def split(self) -> bool:
        """The pass belongs to a backward in two passes."""
        return self.step.kind == WEIGHT or self.step.splits
