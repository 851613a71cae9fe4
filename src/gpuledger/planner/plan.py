"""`plan(question)`: every layout by memory and time, the best of them looked at closely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from gpuledger.compute.step_time.of_run import StepTime, step_time
from gpuledger.config.run import Run
from gpuledger.errors import GpuledgerError, InputError
from gpuledger.estimate import Estimate, estimate
from gpuledger.memory.outside import outside_of

from .enumerate import layouts as enumerated
from .frameworks import Choice, assigned, framework_run, neutral_space
from .layouts import Layouts, Space
from .memory import PeakMemory
from .question import Question
from .times import StepSeconds
from .walks import Array, Bytes

TIE = 0.03
"""Steps whose seconds differ by less are equal as far as the model can tell."""
MOST_LOOKED_AT = 60  # layouts that are replayed in their framework until enough of them fit
NO_ROOM = "does not fit with its framework's buffers and the allocator's cache"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Table:
    """All layouts of a space with their numbers, one entry each."""

    layouts: Layouts
    framework: Array
    """Number of the framework in `frameworks`."""
    frameworks: tuple[Choice, ...]
    peak: Bytes
    seconds: Array
    spaces: tuple[Space, ...]
    """The space of each framework: its run is the framework's."""

    @property
    def allocated_bytes(self) -> Array:
        """Peak of the fullest stage, each tensor rounded up to 512 bytes."""
        return self.peak.requested + self.peak.rounding

    def run_of(self, number: int) -> Run:
        """The run of one layout in its framework."""
        return self.spaces[int(self.framework[number])].run_of(self.layouts.row(number))


@dataclass(frozen=True)
class Plan:
    """One layout, looked at closely, with its framework's own buffers; the best one's stream is
    replayed through the allocator too."""

    number: int
    """Of the layout in the table."""
    estimate: Estimate
    time: StepTime
    neutral_bytes: int
    """Allocated bytes of the same layout without a framework's buffers."""

    @property
    def run(self) -> Run:
        return self.estimate.run

    @property
    def headroom_bytes(self) -> int:
        return self.estimate.memory.headroom_bytes

    @property
    def gpu_seconds_per_step(self) -> float:
        return self.time.step_seconds * self.run.cluster.gpus


@dataclass(frozen=True)
class Answer:
    """plans: the best first, all of which fit. over: layouts that fit in no way, least over first."""

    question: Question
    table: Table
    dropped: Counter[str]
    plans: tuple[Plan, ...]
    over: tuple[Plan, ...]
    rejected: Counter[str] = field(default_factory=Counter)
    """Of the layouts that were looked at closely: how many did not fit, or were refused, and why."""
    looked_at: int = 0
    fitting: int = 0
    """Layouts whose states, gathers and activations fit."""
    in_time: int = 0
    """Layouts that also meet the deadline."""
    fits: Array = None
    """Which layouts of the table fit."""
    tied: int = 0
    """Layouts within TIE of the best one's step."""


def plan(question: Question, progress: Progress = lambda what, done, total: None) -> Answer:
    """The exact optimum of the question's space, and what stands beside it.

    Raises InputError where the space has no layout, what `estimate` raises where none is modelled.
    """
    table, dropped = evaluated(question, progress)
    room = np.array([capacity_left(question, table, n) for n in range(len(table.frameworks))])
    fits = table.allocated_bytes <= room[table.framework]
    meets = fits
    if question.longest_step_seconds is not None:
        meets = fits & (table.seconds <= question.longest_step_seconds)
    search = Search(question, table, progress)
    search.run(best_first(question, table, np.flatnonzero(meets)))
    found = search.found
    return Answer(
        question, table, dropped, tuple(found), () if found else closest(question, table, fits),
        search.rejected, search.looked_at, int(fits.sum()), int(meets.sum()), fits,
        tied(table, found[0], meets) if found else 0,
    )  # fmt: skip


def tied(table: Table, best: Plan, chosen: Array) -> int:
    """Layouts on as many GPUs whose step the model cannot tell from the best one's."""
    same = chosen & (table.layouts.gpus == best.run.cluster.gpus)
    return int((table.seconds[same] <= table.seconds[best.number] * (1 + TIE)).sum())


class Search:
    """Looks at layouts closely, best first, until enough of them fit: one of each mesh."""

    def __init__(self, question: Question, table: Table, progress: Progress):
        self.question, self.table, self.progress = question, table, progress
        self.found: list[Plan] = []
        self.rejected: Counter[str] = Counter()
        self.looked_at = 0

    def run(self, order: Array) -> None:
        """order: numbers of layouts, best first."""
        if self.question.by != "gpus":
            self._look(order)
            return
        gpus = self.table.layouts.gpus[order]
        for count in dict.fromkeys(gpus.tolist()):
            members = order[gpus == count]
            leanest = members[np.argmin(self.table.allocated_bytes[members])]
            if self._fitting(int(leanest)) is None:
                continue                 # what needs least does not fit: nor will the others
            self._look(members)
            if self.found:
                return

    def _look(self, order: Array) -> None:
        seen = {mesh(self.table, plan.number) for plan in self.found}
        for number in order.tolist():
            if self.looked_at >= MOST_LOOKED_AT or len(self.found) == self.question.top:
                return
            if mesh(self.table, number) not in seen:
                one = self._fitting(number, replay=not self.found)
                if one is not None:
                    seen.add(mesh(self.table, number))
                    self.found.append(one)

    def _fitting(self, number: int, *, replay: bool = False) -> Plan | None:
        """The layout, if it fits; replay: in the allocator too, which finds no less."""
        self.looked_at += 1
        self.progress("layouts looked at closely", min(self.looked_at, MOST_LOOKED_AT), MOST_LOOKED_AT)
        one = None
        for replayed in (False, True)[: 1 + replay]:
            one = look_at(self.table, number, self.rejected, replay=replayed)
            if one is None:
                return None
            if one.headroom_bytes < needed_headroom(self.question):
                self.rejected[NO_ROOM] += 1
                return None
        return one


def mesh(table: Table, number: int) -> tuple[int, ...]:
    """What plans are told apart by; of their variants the best one stands for all."""
    row = table.layouts.row(number)
    names = ("gpus", "tp", "pp", "cp", "zero_stage")
    return (int(table.framework[number]), *(row[name] for name in names))


def evaluated(
    question: Question, progress: Progress = lambda what, done, total: None
) -> tuple[Table, Counter[str]]:
    """Memory and time of every layout of the space."""
    space = neutral_space(question)
    found, dropped = enumerated(space)
    if not len(found):
        reasons = "; ".join(f"{reason} ({n:,})" for reason, n in dropped.most_common(3))
        raise InputError(
            f"no layout of {space.run.model.name} on {numbers(question.gpus)} GPUs with a global "
            f"batch of {space.run.training.global_batch_size}: {reasons}",
            "change --global-batch or --gpus, or allow more values with --over",
        )
    progress("layouts", 0, len(found))
    framework = np.full(len(found), -1)
    seconds = np.full(len(found), np.inf)
    spaces: list[Space] = []
    names: list[Choice] = []
    for choice, chosen in assigned(question, found, space):
        of_framework = replace(space, run=framework_run(question, choice))
        seconds[chosen] = StepSeconds(of_framework).seconds(found[chosen])
        framework[chosen] = len(names)
        names.append(choice)
        spaces.append(of_framework)
    known = framework >= 0
    if not known.any():
        raise InputError(
            f"no layout is one that {' or '.join(str(f) for f in question.frameworks or ())} runs",
            "allow another framework, or more axes",
        )
    dropped["no allowed framework runs it"] += int((~known).sum())
    found, framework, seconds = found[known], framework[known], seconds[known]
    peak = PeakMemory(space).peaks(found)
    progress("layouts", len(found), len(found))
    return Table(found, framework, tuple(names), peak, seconds, tuple(spaces)), dropped


def capacity_left(question: Question, table: Table, framework: int) -> int:
    """What tensors may take: the capacity without the context and without what is kept free."""
    gpu = question.run.cluster.gpu
    context = outside_of(table.spaces[framework].run).context
    return gpu.capacity_bytes - (context.expected if context else 0) - needed_headroom(question)


def needed_headroom(question: Question) -> int:
    """Bytes that are kept free."""
    return round(question.run.cluster.gpu.capacity_bytes * question.headroom_percent / 100)


def best_first(question: Question, table: Table, chosen: Array) -> Array:
    """Numbers of these layouts by what is wanted; equal ones by less memory."""
    layouts, seconds = table.layouts[chosen], table.seconds[chosen]
    gpu_seconds = seconds * layouts.gpus
    keys = {
        "time": (seconds,),
        "gpus": (layouts.gpus, seconds),
        "gpu-hours": (gpu_seconds, seconds),
        "cost": (gpu_seconds, seconds),
    }[question.by]
    return chosen[np.lexsort((table.allocated_bytes[chosen], *reversed(keys)))]


def look_at(
    table: Table, number: int, rejected: Counter[str], *, replay: bool = True
) -> Plan | None:
    """One layout in its framework; None, and a reason counted, where it is refused."""
    run = table.run_of(number)
    try:
        found = estimate(run, replay=replay)
        return Plan(number, found, step_time(run), int(table.allocated_bytes[number]))
    except GpuledgerError as error:
        rejected[error.problems[0].message] += 1
        return None


def closest(question: Question, table: Table, fits: Array) -> tuple[Plan, ...]:
    """Where nothing fits, the layouts that need least; where all are too slow, the fastest."""
    found = tuple(_closest(question, table, fits))
    return found if fits.any() else tuple(sorted(found, key=lambda one: -one.headroom_bytes))


def _closest(question: Question, table: Table, fits: Array) -> Iterator[Plan]:
    key = table.seconds if fits.any() else table.allocated_bytes
    candidates = np.flatnonzero(fits) if fits.any() else np.arange(len(table.seconds))
    ignored: Counter[str] = Counter()
    seen: set[tuple[int, ...]] = set()
    for i in candidates[np.argsort(key[candidates], kind="stable")].tolist():
        if len(seen) == question.top or sum(ignored.values()) > MOST_LOOKED_AT:
            return
        if mesh(table, i) not in seen:
            one = look_at(table, i, ignored, replay=False)
            if one is not None:
                seen.add(mesh(table, i))
                yield one


def pareto(table: Table, chosen: Array) -> Array:
    """Numbers of the layouts that no other one beats in both memory and time, fastest first. [L5]
    """
    order = chosen[np.lexsort((table.allocated_bytes[chosen], table.seconds[chosen]))]
    lowest = np.minimum.accumulate(table.allocated_bytes[order])
    first = np.append(True, lowest[1:] < lowest[:-1]) if len(order) else np.zeros(0, bool)
    return order[first]


def front_of(answer: Answer) -> Array:
    """Numbers of the layouts among which the front is: those that fit on the best plan's GPUs, or
    all where none does."""
    gpus = answer.table.layouts.gpus
    if answer.plans:
        return np.flatnonzero((gpus == answer.plans[0].run.cluster.gpus) & answer.fits)
    return np.arange(len(gpus))


def numbers(values: tuple[int, ...]) -> str:
    """`64`, or `8 to 512`."""
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"
