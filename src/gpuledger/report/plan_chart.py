"""The layouts of a plan as a picture: step time against memory, the front named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import __version__
from ..planner.plan import Answer, front_of
from ..planner.table import capacity_left, pareto
from .charts.chart import Chart
from .charts.pareto import Plan as Dot
from .charts.pareto import pareto as pareto_chart

MOST_DOTS = 300  # beside the front: the fastest ones
SHOWN = 2  # times the capacity: what needs more is not drawn


def plan_chart(answer: Answer) -> Chart:
    """Layouts on the best plan's GPUs (all, where none fits): the front, and the fastest others."""
    run, table = answer.question.run, answer.table
    gpus = {int(n) for n in table.layouts.gpus}
    if answer.plans:
        gpus = {answer.plans[0].run.cluster.gpus}
    chosen = np.flatnonzero(np.isin(table.layouts.gpus, list(gpus)))
    near = chosen[table.allocated_bytes[chosen] < SHOWN * run.cluster.gpu.capacity_bytes]
    others = near[np.argsort(table.seconds[near], kind="stable")][:MOST_DOTS]
    numbers = dict.fromkeys([*pareto(table, front_of(answer)).tolist(), *others.tolist()])
    count = f"{min(gpus):,}" if len(gpus) == 1 else f"{min(gpus):,} to {max(gpus):,}"
    footer = (
        f"gpuledger {__version__} | {run.name} | {count} x {run.cluster.gpu.name} | "
        f"{len(chosen):,} layouts, {len(numbers):,} drawn; without a framework's "
        f"buffers; fits: {answer.question.headroom_percent:g} % kept free"
    )
    label = f"{run.name} on {count} GPUs"
    return pareto_chart(label, list(_dots(answer, numbers)), run.cluster.gpu.capacity_bytes, footer,
                        fitting=int(answer.fits[chosen].sum()))


def _dots(answer: Answer, numbers: dict[int, None]) -> Iterator[Dot]:
    table = answer.table
    room = [capacity_left(answer.question, table, n) for n in range(len(table.frameworks))]
    for i in numbers:
        nbytes = int(table.allocated_bytes[i])
        yield Dot(label_of(answer, i), float(table.seconds[i]), nbytes,
                  nbytes <= room[int(table.framework[i])])


def label_of(answer: Answer, number: int) -> str:
    """`tp8 pp4x2 dp16 z1 mb2 full`: short, because it stands beside a dot."""
    row = answer.table.layouts.row(number)
    parts = [f"{name}{row[name]}" for name in ("tp", "pp", "cp", "dp") if row[name] > 1]
    if row["vpp"] > 1:
        parts.append(f"vpp{row['vpp']}")
    if row["zero_stage"]:
        parts.append(f"zero{row['zero_stage']}")
    parts.append(f"mb{row['micro_batch_size']}")
    policy = answer.table.spaces[0].recompute[row["recompute"]]
    if policy != "none":
        parts.append(policy if isinstance(policy, str) else f"every{policy.every}")
    return " ".join(parts)
