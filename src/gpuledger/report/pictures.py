"""The charts of runs, drawn and rendered. Importing it imports matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import __version__
from .build import Picture, Subject
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
from .contents import Content
from .records import (
    allocator_segments,
    bars,
    convention_counts,
    heat_map,
    line_of,
    operators_of,
    roof_of,
    step_time,
    step_timeline,
)
from .step_trace import trace_step
from .sweep_output import value_text


def pictures_of_run(subject: Subject, found: Content, name: str, part: str) -> tuple[Picture, ...]:
    """One part of a run's charts, rendered."""
    return tuple(picture(chart) for chart in CHARTS[part](subject, found, name))


def step_charts(subject: Subject, found: Content, name: str) -> Iterator[Chart]:
    """What one walk of a step shows."""
    label, footer = subject.label, footer_of(found)
    trace = trace_step(subject.run)
    measured = [line_of(step, trace) for step in subject.measured]
    yield timeline(step_timeline(label, found, trace, measured), footer, f"{name}-timeline")
    yield allocator_map(label, allocator_segments(trace), footer, f"{name}-allocator")


def other_charts(subject: Subject, found: Content, name: str) -> Iterator[Chart]:
    """What there is to show beside it; stages only where there are several."""
    label, footer = subject.label, footer_of(found)
    yield feasibility([heat_map(label, subject.run, found)], footer, f"{name}-feasibility")
    yield conventions(convention_counts(label, found), footer, f"{name}-conventions")
    roof = roof_of(subject.run, found)
    if roof is not None:
        yield roofline(label, operators_of(subject.run), roof, footer, f"{name}-roofline")
    stages = bars(label, found)
    if len(stages) > 1:
        yield breakdown(stages, found["run"]["cluster"]["gpu"]["name"], footer, f"{name}-stages")


CHARTS = {"step": step_charts, "other": other_charts}


def shared_pictures(runs: Sequence[tuple[str, Content]], pairs: Sequence[Pair]) -> tuple[Picture, ...]:
    """Charts of all runs together, rendered. runs: label and content of each."""
    return tuple(picture(chart) for chart in shared_charts(runs, pairs))


def shared_charts(runs: Sequence[tuple[str, Content]], pairs: Sequence[Pair]) -> Iterator[Chart]:
    """All runs side by side, as far as there is something to show."""
    footer = common_footer([found for _, found in runs])
    fullest = [max(bars(label, found), key=lambda bar: bar.total_bytes) for label, found in runs]
    gpus = list(dict.fromkeys(found["run"]["cluster"]["gpu"]["name"] for _, found in runs))
    yield breakdown(fullest, gpus[0], footer)
    times = [step_time(label, found) for label, found in runs]
    known = [time for time in times if time is not None]
    if known:
        yield time_breakdown(known, footer)
    if pairs:
        yield parity(pairs, footer)


def picture(chart: Chart, formats: Sequence[str] = FORMATS) -> Picture:
    """The chart rendered in these formats."""
    numbers = tuple((mark.label, mark.text) for mark in chart.marks.values() if not mark.silent)
    return Picture(
        chart.name,
        chart.title,
        chart.description,
        {file_format: rendered(chart, file_format) for file_format in formats},
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
