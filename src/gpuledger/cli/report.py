"""`gpuledger report`: charts and one HTML page of one or several runs, into a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from ..axes import grid, parse_axis
from ..config import RunOptions, resolve_run
from ..config.resolve import resolve_each
from ..errors import GpuledgerError, InputError
from ..files import write_whole
from ..report.build import Report, Subject, build_report
from ..report.compare import Comparison, compare, comparison_table
from ..report.measured import Measurement, not_drawn, read_measurement, steps_of
from .options import say
from .progress import Progress

MOST_RUNS = 40


@dataclass(frozen=True)
class ReportOptions:
    """Where the report goes, and what is in it beside the page."""

    out: Path
    over: Sequence[str] = ()
    markdown: bool = False
    compare: bool = False
    measured: Sequence[Path] = ()


def run_report(sources: Sequence[str], options: RunOptions, how: ReportOptions) -> int:
    """Write the report's files and say where they are. Raises InputError."""
    subjects = [subject for source in sources for subject in subjects_of(source, options, how.over)]
    check(subjects, how)
    measurements = [read_measurement(path) for path in how.measured]
    subjects = with_steps(with_labels(subjects), measurements)
    pairs = [pair for found in measurements for pair in found.pairs]
    progress = Progress("runs")
    report = build_report(subjects, pairs, progress)
    progress.end()
    comparison = compared(report) if how.compare else None
    for path in write_report(report, comparison, how):
        typer.echo(path)
    if comparison is not None:
        typer.echo("\n" + comparison_table(comparison))
    return 0


def subjects_of(source: str, options: RunOptions, over: Sequence[str]) -> Iterator[Subject]:
    """The run, or one for each combination of varied keys."""
    if not over:
        run, assumptions = resolve_run(source, options)
        yield Subject(run.name, run, assumptions)
        return
    settings = grid([parse_axis(text) for text in over])
    if len(settings) > MOST_RUNS:
        raise InputError(
            f"--over makes {len(settings)} runs of {source}, more than {MOST_RUNS}",
            "gpuledger sweep draws large grids",
        )
    from ..report.sweep_output import value_text

    for changes, resolved in zip(settings, resolve_each(source, options, settings), strict=True):
        if isinstance(resolved, GpuledgerError):
            raise resolved
        run, assumptions = resolved
        words = ", ".join(
            f"{key.rpartition('.')[2]} {value_text(value)}" for key, value in changes.items()
        )
        yield Subject(f"{run.name}, {words}", run, assumptions)


def check(subjects: Sequence[Subject], how: ReportOptions) -> None:
    """Raises InputError for what no report can be made of."""
    if len(subjects) > MOST_RUNS:
        raise InputError(
            f"{len(subjects)} runs are more than a report takes ({MOST_RUNS})",
            "gpuledger sweep draws large grids",
        )
    if how.compare and len(subjects) != 2:
        raise InputError(
            f"--compare is for two runs, but there are {len(subjects)}",
            "name two runs, or one with --over key=a,b",
        )
    try:
        how.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {how.out}: {error.strerror}",
            "name a folder that can be written to",
        ) from None


def with_labels(subjects: Sequence[Subject]) -> list[Subject]:
    """Runs of one name get a number, so that a reader can tell them apart."""
    labels = [subject.label for subject in subjects]
    counted: dict[str, int] = {}
    named = []
    for subject in subjects:
        counted[subject.label] = counted.get(subject.label, 0) + 1
        again = labels.count(subject.label) > 1
        label = f"{subject.label} ({counted[subject.label]})" if again else subject.label
        named.append(replace(subject, label=label))
    return named


def with_steps(subjects: Sequence[Subject], measurements: Sequence[Measurement]) -> list[Subject]:
    """Each run with the steps that were measured of it; says which files are of none."""
    say("warning", tuple(not_drawn(measurements, [subject.run for subject in subjects])))
    return [replace(one, measured=steps_of(one.run, measurements)) for one in subjects]


def compared(report: Report) -> Comparison:
    first, second = report.runs
    return compare((first.subject.label, first.content), (second.subject.label, second.content))


def write_report(
    report: Report, comparison: Comparison | None, how: ReportOptions
) -> Iterator[Path]:
    """Charts in every format, estimates as JSON, the page, and Markdown where it is wanted."""
    from ..report.html import report_page

    pictures = [*report.pictures, *(picture for run in report.runs for picture in run.pictures)]
    for picture in pictures:
        for file_format, data in picture.files.items():
            write_whole(how.out / f"{picture.name}.{file_format}", data)
    estimates = json.dumps([run.content for run in report.runs], indent=1)
    write_whole(how.out / "estimates.json", estimates)
    if how.markdown:
        from ..report.markdown import report_markdown

        yield write_whole(how.out / "report.md", report_markdown(report, comparison))
    yield write_whole(how.out / "index.html", report_page(report, comparison))
