"""`plan(question)`: every layout by memory and time, the best of them looked at closely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from .question import Question
from .search import Plan, Search, closest
from .table import Progress, Table, best_first, evaluated, fitting, pareto
from .walks import Array

TIE = 0.03
"""Steps whose seconds differ by less are equal as far as the model can tell."""


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
    fits, meets = fitting(question, table)
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


def front_of(answer: Answer) -> Array:
    """Numbers of the layouts on the front, fastest first: of those that fit on the best plan's GPUs,
    or of all where none does."""
    gpus = answer.table.layouts.gpus
    if answer.plans:
        chosen = np.flatnonzero((gpus == answer.plans[0].run.cluster.gpus) & answer.fits)
    else:
        chosen = np.arange(len(gpus))
    return pareto(answer.table, chosen)
