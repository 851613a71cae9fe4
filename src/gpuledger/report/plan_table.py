"""A plan as text: the answer in one sentence, the best layouts, what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..config.run import Run
from ..planner.plan import TIE, Answer, front_of
from ..planner.question import SECONDS_PER_DAY
from ..planner.search import Plan
from ..planner.table import needed_headroom, numbers
from ..units import count, gib, gib_cell
from .step_time import utilization

FRONT = 6  # layouts of the front that are printed
BY = {"time": "the shortest step", "gpus": "the fewest GPUs", "gpu-hours": "the fewest GPU hours",
      "cost": "the least cost"}


def plan_table(answer: Answer) -> str:
    """The whole answer. A failure is an answer too."""
    blocks = [heading(answer)]
    if answer.plans:
        blocks += [sentence(answer), plans_table(answer, answer.plans), remarks(answer)]
    else:
        blocks += [failure(answer), plans_table(answer, answer.over), remarks(answer)]
    return "\n\n".join(block for block in blocks if block)


def heading(answer: Answer) -> str:
    """What was asked, and how large the space is."""
    run, question = answer.question.run, answer.question
    training = run.training
    wanted = BY[question.by]
    if question.days is not None:
        wanted += f" that see {count(question.tokens or 0)} tokens in {question.days:g} days"
    return "\n".join((
        f"{run.name} on {numbers(question.gpus)} x {run.cluster.gpu.name}: {wanted}",
        f"{training.global_batch_size:,} sequences of {training.seq_len:,} tokens a step, "
        f"{training.optimizer}, attention {training.attention}, loss {training.loss}",
        f"{len(answer.table.seconds):,} layouts, all of them evaluated: {answer.fitting:,} fit with "
        f"{question.headroom_percent:g} % of the memory kept free"
        + (f", {answer.in_time:,} of these in time" if question.days is not None else ""),
    ))


def sentence(answer: Answer) -> str:
    """The best layout in words."""
    best = answer.plans[0]
    memory, time = best.estimate.memory, best.time
    seconds = f"{time.step_seconds:.3g} s a step{span(best)}"
    used = gib(memory.peak_reserved_bytes or memory.peak_allocated_bytes)
    gpus = best.run.cluster.gpus
    parts = [f"best: {gpus:,} GPU{'s' * (gpus > 1)}, {framework_of(best.run)}, {layout_of(best.run)}: "
             f"{seconds}, {used} reserved at the peak of the fullest GPU, {gib(best.headroom_bytes)} left"]
    if answer.question.tokens is not None:
        days, price = days_of(answer, best), answer.question.price
        hours = days * 24 * best.run.cluster.gpus
        cost = "" if price is None else f", {hours * price:,.0f} at {price:g} a GPU hour"
        parts.append(f"{count(answer.question.tokens)} tokens take {days:,.1f} days and "
                     f"{hours:,.0f} GPU hours{cost}")
    return "\n".join(parts)


def span(plan: Plan) -> str:
    """` (7.2 to 23 s)`, where published steps of the family say so."""
    low, high = plan.time.error.low_seconds, plan.time.error.high_seconds
    return "" if low is None or high is None else f" ({low:.3g} to {high:.3g} s)"


def days_of(answer: Answer, plan: Plan) -> float:
    """Days that the tokens take, without stops."""
    steps = plan.run.training.optimizer_steps(answer.question.tokens or 0)
    return steps * plan.time.step_seconds / SECONDS_PER_DAY


def plans_table(answer: Answer, plans: Sequence[Plan]) -> str:
    """One line for each plan."""
    from tabulate import tabulate

    if not plans:
        return ""
    tokens = answer.question.tokens is not None
    rows = []
    for number, plan in enumerate(plans, 1):
        mfu, _ = utilization(plan.estimate, plan.time)
        row = [number, plan.run.cluster.gpus, framework_of(plan.run), layout_of(plan.run),
               f"{plan.time.step_seconds:.4g}", f"{plan.time.tokens_per_second_per_gpu:,.0f}",
               "" if mfu is None else f"{100 * mfu:.1f} %",
               gib_cell(plan.estimate.memory.peak_allocated_bytes), gib_cell(plan.headroom_bytes)]
        rows.append([*row, f"{days_of(answer, plan):,.1f}"] if tokens else row)
    headers = ["", "GPUs", "framework", "layout", "step s", "tokens/s/GPU", "MFU", "peak GiB", "left GiB"]
    return tabulate(rows, [*headers, "days"] if tokens else headers, disable_numparse=True,
                    colalign=("right", "right", "left", "left", *("right",) * (len(rows[0]) - 4)))


def remarks(answer: Answer) -> str:
    """What stands beside the answer."""
    return "\n".join(_remarks(answer))


def _remarks(answer: Answer) -> Iterator[str]:
    if answer.tied > 1:
        yield (f"{answer.tied:,} layouts on as many GPUs are within {100 * TIE:.0f} % of the best step, "
               "closer than the model can tell")
    if answer.plans:
        front = front_of(answer)
        points = "; ".join(f"{answer.table.seconds[i]:.4g} s {gib(int(answer.table.allocated_bytes[i]))}"
                           for i in front[:FRONT])
        more = f", and {len(front) - FRONT} more" if len(front) > FRONT else ""
        yield f"less memory for more time, without a framework's buffers: {points}{more}"
    if answer.rejected:
        yield f"looked at closely: {answer.looked_at}; {reasons(answer.rejected)}"
    if answer.dropped:
        yield f"no layout: {reasons(answer.dropped)}"


def reasons(counter: Counter[str]) -> str:
    """`reason: 12; another: 3`, most frequent first."""
    return "; ".join(f"{reason}: {number:,}" for reason, number in counter.most_common() if number)


def failure(answer: Answer) -> str:
    """What misses, and by how much."""
    question = answer.question
    if not answer.over:
        return f"no plan: every layout was refused ({reasons(answer.rejected)})"
    best = answer.over[0]
    if answer.fitting and question.days is not None and not answer.in_time:
        return (f"too slow: the fastest layout that fits takes {days_of(answer, best):,.1f} days, "
                f"{days_of(answer, best) / question.days:.2f} times the deadline")
    need = needed_headroom(question) - best.headroom_bytes
    return (f"nothing fits: the layout that needs least is {gib(need)} over on each GPU, with "
            f"{question.headroom_percent:g} % kept free")


def framework_of(run: Run) -> str:
    return run.parallel.framework or "none"


def layout_of(run: Run) -> str:
    """`tp 8 sp, pp 4 x 2, dp 16, ZeRO-1, micro-batch 2, recompute full`."""
    parallel, training = run.parallel, run.training
    parts = []
    if parallel.tp > 1:
        parts.append(f"tp {parallel.tp}{' sp' if parallel.sequence_parallel else ''}")
    if parallel.pp > 1:
        parts.append(f"pp {parallel.pp}{f' x {parallel.vpp}' if parallel.vpp > 1 else ''}")
    if parallel.cp > 1:
        parts.append(f"cp {parallel.cp}")
    if parallel.dp > 1:
        parts.append(f"dp {parallel.dp}")
    if parallel.zero_stage:
        parts.append(f"ZeRO-{parallel.zero_stage}")
    parts.append(f"micro-batch {training.micro_batch_size}")
    if training.recompute != "none":
        word = training.recompute if isinstance(training.recompute, str) else f"every {training.recompute.every}"
        parts.append(f"recompute {word}")
    return ", ".join(parts)
