"""The layouts of a plan as a picture: step time against memory, the best and the front named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import __version__
from ..planner.plan import Answer, front_of
from ..planner.table import capacity_left
from ..units import count
from .charts.chart import Chart
from .charts.pareto import FITS, FITS_NOT, PASSED_OVER, Plans
from .charts.pareto import Plan as Dot
from .charts.pareto import pareto as pareto_chart
from .charts.seconds import seconds_text
from .plan_table import days_of, failure, framework_of, layout_of

MOST_DOTS = 300  # beside the front: the fastest ones
SHOWN = 2  # times the capacity: what needs more is not drawn
SLOWER = 1.1  # than the slowest of the front: the rest has nothing to say
NO_FIT_SLOWER = 4.0  # than the fastest, where nothing fits


def plan_chart(answer: Answer) -> Chart:
    """Layouts on the best plan's GPUs (all, where none fits): the front, and the fastest others."""
    run, table = answer.question.run, answer.table
    gpus = {plan.run.cluster.gpus for plan in answer.plans[:1]} or {int(n) for n in table.layouts.gpus}
    chosen = np.flatnonzero(np.isin(table.layouts.gpus, list(gpus)))
    numbers = drawn(answer, chosen)
    on = f"{min(gpus):,}" if len(gpus) == 1 else f"{min(gpus):,} to {max(gpus):,}"
    training = run.training
    footer = " · ".join((
        f"gpuledger {__version__}", run.name, f"{on} x {run.cluster.gpu.name}",
        f"{training.global_batch_size:,} x {training.seq_len:,} tokens a step", training.optimizer,
        f"attention {training.attention}", f"loss {training.loss}",
        f"{len(numbers):,} of {len(chosen):,} layouts drawn, the front and the fastest others",
    ))
    headroom = answer.question.headroom_percent
    room = max(capacity_left(answer.question, table, n) for n in range(len(table.frameworks)))
    return pareto_chart(
        Plans(
            f"{run.name} on {on} GPU{'s' * (gpus != {1})}: {finding(answer, int(answer.fits[chosen].sum()))}",
            "Time of a step, s, and peak memory of the fullest GPU without a framework's buffers, GiB; the "
            f"room for them is the capacity less the CUDA context and {headroom:g} % kept free; lower left is "
            "better",
            list(_dots(answer, numbers)), run.cluster.gpu.capacity_bytes, room,
            "best plans" if answer.plans else "closest layouts",
        ),
        footer,
    )


def finding(answer: Answer, fitting: int) -> str:
    """The best plan in words, or what misses and by how much."""
    if not answer.plans:
        return failure(answer)
    best, tokens = answer.plans[0], answer.question.tokens
    long = "" if tokens is None else f", {days_of(answer, best):,.1f} days for {count(tokens)} tokens"
    rank = f"best of {fitting:,} that fit" if fitting > 1 else "the only one that fits"
    return (f"{layout_of(best.run)} ({framework_of(best.run)}) is {rank}, "
            f"{seconds_text(best.time.step_seconds)} a step{long}")


def drawn(answer: Answer, chosen: np.ndarray) -> list[int]:
    """Numbers of the layouts in the picture: plans, front, and the fastest others around them."""
    table = answer.table
    front = front_of(answer)
    known = set(chosen.tolist())
    plans = [plan.number for plan in answer.plans or answer.over if plan.number in known]
    capacity = answer.question.run.cluster.gpu.capacity_bytes
    if answer.fits.any():
        slowest = SLOWER * max(table.seconds[[*front, *plans]])
    else:
        slowest = NO_FIT_SLOWER * table.seconds[front].min()
    near = chosen[(table.allocated_bytes[chosen] < SHOWN * capacity) & (table.seconds[chosen] <= slowest)]
    others = near[np.argsort(table.seconds[near], kind="stable")][:MOST_DOTS]
    return list(dict.fromkeys([*plans, *front.tolist(), *others.tolist()]))


def _dots(answer: Answer, numbers: list[int]) -> Iterator[Dot]:
    table = answer.table
    ranks = {plan.number: rank for rank, plan in enumerate(answer.plans or answer.over, 1)}
    for i in numbers:
        nbytes, seconds = int(table.allocated_bytes[i]), float(table.seconds[i])
        kind = FITS if answer.fits[i] else FITS_NOT
        if kind == FITS and passed_over(answer, seconds):
            kind = PASSED_OVER
        yield Dot(label_of(answer, i), seconds, nbytes, kind, ranks.get(i, 0))


def passed_over(answer: Answer, seconds: float) -> bool:
    """Whether a layout that fits was looked at before the best one: the search goes by seconds."""
    return bool(answer.plans) and seconds < float(answer.table.seconds[answer.plans[0].number])


def label_of(answer: Answer, number: int) -> str:
    """`tp8 pp4 dp16 vpp2 zero1 mb2 full`: short, because it stands beside a dot."""
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
