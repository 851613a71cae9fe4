"""Which moments of a schedule can be the highest, for the stages that can be the fullest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import le

from gpuledger.config.run import Run
from gpuledger.memory.pipeline.schedules import BACKWARD, FORWARD, Pipeline, in_flight, passes
from gpuledger.memory.pipeline.stage_peak import ALL, NONE
from gpuledger.memory.pipeline.stages import chunks_of_stages
from gpuledger.program.model import Stage

DESCENDING = ("1f1b", "gpipe", "interleaved")
"""Schedules in which no stage holds more micro-batches than the stage before it: of stages with
like parts the first is the fullest."""
ROUNDS = 3  # of the pipeline, after which a step repeats itself


@dataclass(frozen=True)
class PartKey:
    """What a model chunk's walk depends on."""

    embedding: bool
    head: bool
    num_layers: int
    phase: int = 0
    """Where in the period of its layers' pattern the part begins."""

    @classmethod
    def of(cls, part: Stage, period: int) -> PartKey:
        return cls(part.embedding, part.head, part.num_layers, part.first_layer % period)

    @property
    def stage(self) -> Stage:
        """A part of the model that is like it."""
        return Stage(self.phase, self.num_layers, self.embedding, self.head)


Counts = tuple[tuple[PartKey, int], ...]  # how many micro-batches (or chunks) of each part


@dataclass(frozen=True)
class Moment:
    """A pass of one part, the gradients that its own chunk has by then, how many micro-batches of
    each part wait beside it, and how many chunks of each part have gradients of earlier ones."""

    kind: str
    part: PartKey
    earlier: str
    waiting: Counts
    with_gradients: Counts


@dataclass(frozen=True)
class StageKind:
    """A stage of a pipeline: its chunks' parts in order, and the moments that can be its highest."""

    parts: tuple[PartKey, ...]
    moments: tuple[Moment, ...]

    @property
    def content(self) -> PartKey:
        """The same layers in one part: what states and update depend on."""
        return PartKey(
            any(part.embedding for part in self.parts),
            any(part.head for part in self.parts),
            sum(part.num_layers for part in self.parts),
        )


def stage_kinds(run: Run, num_microbatches: int, period: int = 1) -> tuple[StageKind, ...]:
    """The stages of a run's pipeline that can be the fullest, first come first.

    run: one layout; of its sizes only the pipeline's are looked at. The schedule is one of
    DESCENDING. period: after how many layers their pattern repeats.
    """
    if run.parallel.pp == 1:
        return (_single(run, num_microbatches),)
    kinds: dict[tuple[PartKey, ...], StageKind] = {}
    for stage, chunks in enumerate(chunks_of_stages(run)):
        parts = tuple(PartKey.of(part, period) for part in chunks)
        if parts not in kinds:
            m = min(num_microbatches, ROUNDS * run.parallel.pp)
            pipeline = Pipeline(run.parallel.pp, stage, m, run.parallel.chunks)
            kept = NONE if run.training.set_to_none else ALL
            order = (run.parallel.pipeline_schedule, pipeline)
            kinds[parts] = StageKind(parts, _highest(order, parts, kept))
    return tuple(kinds.values())


def _single(run: Run, num_microbatches: int) -> StageKind:
    """One stage: the last micro-batch of a step."""
    part = PartKey(True, True, run.model.num_layers)
    earlier = ALL if num_microbatches > 1 or not run.training.set_to_none else NONE
    own = ((part, 1),) if earlier == ALL else ()
    moments = tuple(Moment(kind, part, earlier, (), own) for kind in (FORWARD, BACKWARD))
    return StageKind((part,), moments)


@dataclass(frozen=True)
class _Pass:
    """A pass as counts by number of the part: what waits, and which chunks have gradients."""

    kind: str
    part: int
    earlier: str
    waiting: tuple[int, ...]
    with_gradients: tuple[int, ...]

    @property
    def amount(self) -> int:
        return sum(self.waiting) + sum(self.with_gradients) + (self.earlier == ALL)

    def below(self, other: _Pass) -> bool:
        """The other has everything that this one has.

        A pass that finds gradients has, at each of its events, what it has without them, and more;
        a backward pass that finds none makes them.
        """
        made = self.kind == BACKWARD and self.earlier != other.earlier
        gradients = (
            count + (made and part == self.part) for part, count in enumerate(self.with_gradients)
        )
        return (
            (self.kind, self.part) == (other.kind, other.part)
            and other.earlier in (self.earlier, ALL)
            and all(map(le, self.waiting, other.waiting))
            and all(map(le, gradients, other.with_gradients))
        )


@lru_cache(maxsize=4096)
def _highest(
    order: tuple[str, Pipeline], parts: tuple[PartKey, ...], kept: str
) -> tuple[Moment, ...]:
    """Moments of a stage that no other moment contains."""
    distinct = tuple(dict.fromkeys(parts))
    number = [distinct.index(part) for part in parts]
    highest: list[_Pass] = []
    for found in sorted(set(_passes(order, number, kept)), key=lambda p: -p.amount):
        if not any(found.below(other) for other in highest):
            highest.append(found)

    def counts(numbers: tuple[int, ...]) -> Counts:
        return tuple((part, n) for part, n in zip(distinct, numbers, strict=True) if n)

    return tuple(
        Moment(p.kind, distinct[p.part], p.earlier, counts(p.waiting), counts(p.with_gradients))
        for p in highest
    )


def _passes(order: tuple[str, Pipeline], number: list[int], kept: str) -> Iterator[_Pass]:
    """The passes of one step; number: of each chunk's part."""
    left, parts = [kept] * len(number), range(max(number) + 1)
    gradients = tuple(number.count(part) if kept == ALL else 0 for part in parts)
    for step, forwarded, _ in in_flight(passes(*order)):
        waiting = [0] * len(parts)
        for chunk, count in forwarded.items():
            waiting[number[chunk]] += count
        chunk = step.chunk
        yield _Pass(step.kind, number[chunk], left[chunk], tuple(waiting), gradients)
        if step.kind == BACKWARD and left[chunk] == NONE:
            left[chunk] = ALL
            gradients = tuple(g + (part == number[chunk]) for part, g in enumerate(gradients))
