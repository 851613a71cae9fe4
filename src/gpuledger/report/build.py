"""A report's contents: for each run its estimate and its charts, ready to be written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from .. import __version__
from ..config.run import Run
from ..estimate import estimate
from .charts.allocator_map import allocator_map
from .charts.breakdown import breakdown
from .charts.chart import Chart
from .charts.conventions import conventions
from .charts.feasibility import feasibility
from .charts.parity import Pair, parity
from .charts.roofline import roofline
from .charts.save import FORMATS, rendered
from .charts.time_breakdown import time_breakdown
from .charts.timeline import timeline
from .estimate_json import content
from .records import (
    Content,
    allocator_segments,
    bars,
    convention_counts,
    heat_map,
    operators_of,
    roof_of,
    step_time,
    step_timeline,
)
from .step_trace import trace_step
from .sweep_output import value_text


@dataclass(frozen=True)
class Subject:
    """One run of a report, under the name that tells it from the others."""

    label: str
    run: Run
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A chart as files, by format, with its words and the numbers in it: (what, value)."""

    name: str
    title: str
    description: str
    files: dict[str, bytes]
    numbers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RunReport:
    """A run, its estimate as `estimate --json` prints it, and its own charts."""

    subject: Subject
    content: Content
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Report:
    """Charts of all runs together, then each run."""

    pictures: tuple[Picture, ...]
    runs: tuple[RunReport, ...]


def build_report(
    subjects: Sequence[Subject],
    pairs: Sequence[Pair] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Estimate and draw, one process per core where there are several runs.

    pairs: estimates and measurements for the parity chart. Raises what `estimate` raises.
    """
    names = unique_names([subject.label for subject in subjects])
    runs = []
    for done, report in enumerate(computed(list(zip(subjects, names, strict=True))), start=1):
        runs.append(report)
        progress(done, len(subjects))
    return Report(tuple(map(picture, shared_charts(runs, pairs))), tuple(runs))


def computed(tasks: Sequence[tuple[Subject, str]]) -> Iterator[RunReport]:
    """The reports of the runs, in order."""
    processes = min(len(tasks), os.cpu_count() or 1)
    if processes < 2:
        yield from (report_of_run(*task) for task in tasks)
        return
    # Not forked: a fork shares the position in font files that this process has open.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(report_of_run, *zip(*tasks, strict=True))


def report_of_run(subject: Subject, name: str) -> RunReport:
    """One run: its estimate, replayed as `gpuledger estimate` does, and its charts."""
    result = estimate(subject.run, replay=True, assumptions=subject.assumptions)
    found = content(result)
    charts = charts_of_run(subject, found, name)
    return RunReport(subject, found, tuple(map(picture, charts)))


def charts_of_run(subject: Subject, found: Content, name: str) -> Iterator[Chart]:
    """What there is to show of one run; stages only where there are several."""
    label, footer = subject.label, footer_of(found)
    trace = trace_step(subject.run)
    yield timeline(step_timeline(label, found, trace), footer, f"{name}-timeline")
    yield feasibility([heat_map(label, subject.run, found)], footer, f"{name}-feasibility")
    yield allocator_map(label, allocator_segments(trace), footer, f"{name}-allocator")
    yield conventions(convention_counts(label, found), footer, f"{name}-conventions")
    roof = roof_of(subject.run, found)
    if roof is not None:
        yield roofline(label, operators_of(subject.run), roof, footer, f"{name}-roofline")
    stages = bars(label, found)
    if len(stages) > 1:
        yield breakdown(stages, found["run"]["cluster"]["gpu"]["name"], footer, f"{name}-stages")


def shared_charts(runs: Sequence[RunReport], pairs: Sequence[Pair]) -> Iterator[Chart]:
    """All runs side by side, as far as there is something to show."""
    footer = common_footer([run.content for run in runs])
    fullest = [
        max(bars(run.subject.label, run.content), key=lambda bar: bar.total_bytes) for run in runs
    ]
    gpus = list(dict.fromkeys(run.content["run"]["cluster"]["gpu"]["name"] for run in runs))
    yield breakdown(fullest, gpus[0], footer)
    times = [step_time(run.subject.label, run.content) for run in runs]
    known = [time for time in times if time is not None]
    if known:
        yield time_breakdown(known, footer)
    if pairs:
        yield parity(pairs, footer)


def picture(chart: Chart) -> Picture:
    """The chart rendered in every format."""
    numbers = tuple((mark.label, mark.text) for mark in chart.marks.values() if not mark.silent)
    return Picture(
        chart.name,
        chart.title,
        chart.description,
        {file_format: rendered(chart, file_format) for file_format in FORMATS},
        numbers,
    )


def footer_of(found: Content) -> str:
    """Version and configuration: what a chart is evidence of."""
    return " · ".join([f"gpuledger {__version__}", *facts(found)])


def facts(found: Content) -> list[str]:
    """The settings of a run that a reader of its chart needs."""
    run = found["run"]
    training, parallel, cluster = run["training"], run["parallel"], run["cluster"]
    recompute = training["recompute"]
    axes = [
        f"{axis} {parallel[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep") if parallel[axis] > 1
    ]
    return [
        run["model"]["name"],
        f"{cluster['gpus']} x {cluster['gpu']['name']}",
        *axes,
        f"ZeRO {parallel['zero_stage']}",
        f"micro-batch {training['micro_batch_size']} x {training['seq_len']:,} tokens",
        f"global batch {training['global_batch_size']:,}",
        training["precision"],
        training["optimizer"],
        f"attention {training['attention']}",
        f"recompute {value_text(recompute)}",
        f"loss {training['loss']}",
    ]


def common_footer(contents: Sequence[Content]) -> str:
    """What all runs have in common."""
    all_facts = [facts(found) for found in contents]
    shared = [fact for fact in all_facts[0] if all(fact in others for others in all_facts)]
    return " · ".join([f"gpuledger {__version__}", *shared])


def unique_names(labels: Sequence[str]) -> list[str]:
    """File names from labels: lower case, no spaces, a number where two are alike."""
    names: list[str] = []
    for label in labels:
        plain = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "run"
        name, number = plain, 2
        while name in names:
            name, number = f"{plain}-{number}", number + 1
        names.append(name)
    return names
