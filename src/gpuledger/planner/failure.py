"""When no layout fits, or none in time: how many GPUs would be enough, and what else would help."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.advice import advise
from gpuledger.errors import GpuledgerError

from .plan import Answer
from .table import evaluated, fitting

MORE = (2, 4, 8, 16, 32, 64)  # times as many GPUs
MOST_REMEDIES = 3


def enough_gpus(answer: Answer) -> str | None:
    """The first multiple of the GPUs on which some layout fits, and in time; None if none does."""
    question = answer.question
    largest = question.gpus[-1]
    per_node = question.run.cluster.gpus_per_node
    for factor in MORE:
        gpus = largest * factor
        if gpus > per_node:
            gpus = -(-gpus // per_node) * per_node
        asked = replace(question, gpus=(gpus,))
        try:
            table, _ = evaluated(asked)
        except GpuledgerError:
            continue
        _, good = fitting(asked, table)
        if good.any():
            best = float(table.seconds[good].min())
            in_time = ", in time" if asked.longest_step_seconds is not None else ""
            return f"with {gpus:,} GPUs {int(good.sum()):,} layouts fit{in_time}: the fastest takes {best:.3g} s a step"
    return None


def remedies(answer: Answer) -> list[str]:
    """Changes to the layout that is closest, each of which makes it fit, with its price."""
    if not answer.over or answer.over[0].headroom_bytes >= 0:
        return []
    found = advise(answer.over[0].estimate)[:MOST_REMEDIES]
    return [f"the first of these fits with {advice.change.text} ({', '.join(advice.change.costs)})"
            for advice in found]
