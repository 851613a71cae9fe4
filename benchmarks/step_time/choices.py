"""What it costs to take the layout that is predicted to be the fastest, and rules for ties."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from rows import Row

from gpuledger.compute.step_time.attention import softmax_falls_back
from gpuledger.compute.step_time.inputs import Layout
from gpuledger.compute.step_time.local import Local

Rule = tuple[float, Callable[[Layout], float]]
RULES: dict[str, Rule] = {
    "smallest micro-batch within 1 %": (0.01, lambda p: p.micro_batch_size),
    "smallest micro-batch within 3 %": (0.03, lambda p: p.micro_batch_size),
    "least tensor parallelism within 3 %": (0.03, lambda p: p.tp),
    "least pipeline within 3 %": (0.03, lambda p: p.pp),
}
"""Predictions within the band of the best are a tie, and the layout with the least of this wins."""


@dataclass(frozen=True)
class Group:
    """Rows of equal work in two or more layouts: their numbers, and the mean measured seconds of
    the layout of each."""

    numbers: np.ndarray
    seconds: np.ndarray

    def cost(self, number: int) -> float:
        """Percent over the best measured layout; `number` counts within the group."""
        return 100 * float(self.seconds[number] / self.seconds.min() - 1)

    @property
    def median_cost(self) -> float:
        """What the median row costs."""
        return 100 * float(np.median(self.seconds) / self.seconds.min() - 1)


@dataclass(frozen=True)
class Choice:
    """Percent of the best measured seconds: of the predicted best, of the median layout, and the
    mean under each rule for ties."""

    groups: int
    rows: int
    mean: float
    p95: float
    max: float
    median_layout: float
    rules: dict[str, float]


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """Groups of rows with equal work in at least two layouts. Repeated rows count as their mean."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        members[row.work].append(index)
    found = []
    for indices in members.values():
        measured: dict[Hashable, list[float]] = defaultdict(list)
        for i in indices:
            measured[astuple(rows[i].layout)].append(rows[i].step_seconds)
        if len(measured) > 1:
            means = [np.mean(measured[astuple(rows[i].layout)]) for i in indices]
            found.append(Group(np.array(indices), np.array(means)))
    return found


def choice(predicted: np.ndarray, rows: Sequence[Row]) -> Choice | None:
    """What taking the predicted best costs; None where no group has two layouts."""
    groups = groups_of(rows)
    if not groups:
        return None
    costs = np.array([g.cost(int(np.argmin(predicted[g.numbers]))) for g in groups])
    return Choice(
        groups=len(groups),
        rows=sum(len(g.numbers) for g in groups),
        mean=float(costs.mean()),
        p95=float(np.quantile(costs, 0.95)),
        max=float(costs.max()),
        median_layout=float(np.mean([g.median_cost for g in groups])),
        rules={name: by_rule(rule, predicted, rows, groups) for name, rule in RULES.items()},
    )


def by_rule(
    rule: Rule, predicted: np.ndarray, rows: Sequence[Row], groups: Sequence[Group]
) -> float:
    """The mean cost where ties are broken by a rule, then by the prediction."""
    band, key = rule
    costs = []
    for group in groups:
        seconds = predicted[group.numbers]
        tied = np.flatnonzero(seconds <= (1 + band) * seconds.min()).tolist()
        least = min(tied, key=lambda k: (key(rows[group.numbers[k]].layout), seconds[k]))
        costs.append(group.cost(least))
    return float(np.mean(costs))


def cost_of_random_errors(
    rows: Sequence[Row], mean_absolute: float, draws: int = 200, seed: int = 0
) -> float:
    """The mean cost of choosing by the measured seconds times random errors of this size (percent;
    log-normal, of which the mean absolute value is 0.8 standard deviations)."""
    deviation = mean_absolute / 100 / np.sqrt(2 / np.pi)
    random, groups = np.random.default_rng(seed), groups_of(rows)
    costs = [
        g.cost(int(np.argmin(g.seconds * np.exp(random.normal(0, deviation, len(g.seconds))))))
        for _ in range(draws)
        for g in groups
    ]
    return float(np.mean(costs))


def doublings(rows: Sequence[Row]) -> dict[str, float]:
    """Pairs of rows that differ in the micro-batch's size alone, one twice the other; in how many of
    them twice the work was measured to take less time, and the most that it took less, percent.
    Left out: rows whose softmax is outside Megatron's kernel, which is slower for a known reason."""
    found = {}
    for row in rows:
        p = row.layout
        if softmax_falls_back(Local.of(row.decoder, p), row.software):
            continue
        place = (row.decoder, p.tp, p.pp, p.dp, p.num_microbatches)
        found[(place, p.micro_batch_size)] = row.step_seconds
    pairs = [
        (seconds, found[(place, 2 * size)])
        for (place, size), seconds in found.items()
        if (place, 2 * size) in found
    ]
    shorter = [100 * (1 - twice / once) for once, twice in pairs if twice < once]
    return {"pairs": len(pairs), "shorter": len(shorter), "most": max(shorter, default=0.0)}


def shape_error(
    predicted: np.ndarray, rows: Sequence[Row], hidden: int, tp: int, micro: int
) -> float:
    """The mean error, percent, of the rows with layers of one shape."""
    chosen = [
        i
        for i, row in enumerate(rows)
        if (row.decoder.hidden_size, row.layout.tp, row.layout.micro_batch_size)
        == (hidden, tp, micro)
    ]
    return float(np.mean([100 * (predicted[i] / rows[i].step_seconds - 1) for i in chosen]))
