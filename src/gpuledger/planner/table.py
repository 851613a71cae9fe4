"""Every layout of a question with its memory and its step, and how they are ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpuledger.config.run import Run
from gpuledger.errors import InputError
from gpuledger.memory.outside import outside_of

from .enumerate import layouts as enumerated
from .frameworks import Choice, assigned, framework_run, neutral_space
from .layouts import Layouts, Space
from .memory import PeakMemory
from .question import Question
from .times import StepSeconds
from .walks import Array, Bytes

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


def fitting(question: Question, table: Table) -> tuple[Array, Array]:
    """(which layouts fit, which of these are in time too)."""
    room = np.array([capacity_left(question, table, n) for n in range(len(table.frameworks))])
    fits = table.allocated_bytes <= room[table.framework]
    limit = question.longest_step_seconds
    return fits, fits if limit is None else fits & (table.seconds <= limit)


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


def pareto(table: Table, chosen: Array) -> Array:
    """Numbers of the layouts that no other one beats in both memory and time, fastest first. [L5]
    """
    order = chosen[np.lexsort((table.allocated_bytes[chosen], table.seconds[chosen]))]
    lowest = np.minimum.accumulate(table.allocated_bytes[order])
    first = np.append(True, lowest[1:] < lowest[:-1]) if len(order) else np.zeros(0, bool)
    return order[first]


def numbers(values: tuple[int, ...]) -> str:
    """`64`, or `8 to 512`."""
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"
