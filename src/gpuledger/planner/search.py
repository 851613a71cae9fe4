"""The best layouts looked at closely: in their framework, the best of all in the allocator too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuledger.compute.step_time.of_run import StepTime, step_time
from gpuledger.config.run import Run
from gpuledger.errors import GpuledgerError
from gpuledger.estimate import Estimate, estimate

from .question import Question
from .table import Progress, Table, needed_headroom
from .walks import Array

MOST_LOOKED_AT = 60  # layouts that are looked at in their framework until enough of them fit
NO_ROOM = "does not fit with its framework's buffers and the allocator's cache"


@dataclass(frozen=True)
class Plan:
    """One layout, looked at closely, with its framework's own buffers; the best one's stream is
    replayed through the allocator too."""

    number: int
    """Of the layout in the table."""
    estimate: Estimate
    time: StepTime

    @property
    def run(self) -> Run:
        return self.estimate.run

    @property
    def headroom_bytes(self) -> int:
        return self.estimate.memory.headroom_bytes


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


def look_at(
    table: Table, number: int, rejected: Counter[str], *, replay: bool = True
) -> Plan | None:
    """One layout in its framework; None, and a reason counted, where it is refused."""
    run = table.run_of(number)
    try:
        found = estimate(run, replay=replay)
        return Plan(number, found, step_time(run))
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
