"""A report's contents: for each run its estimate and its charts, ready to be written.

Nothing here imports matplotlib before it draws: the processes that draw start while this one resolves runs.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from ..config.run import Run
from ..estimate import estimate
from .contents import Content
from .estimate_json import content
from .measured import MeasuredStep

if TYPE_CHECKING:
    from .charts.parity import Pair

PARTS = ("step", "other")  # of a run's charts: see pictures.CHARTS
ORDER = ("timeline", "feasibility", "allocator", "conventions", "roofline", "stages")


@dataclass(frozen=True)
class Subject:
    """One run of a report, under the name that tells it from the others; steps of it that were
    measured."""

    label: str
    run: Run
    assumptions: tuple[str, ...] = ()
    measured: tuple[MeasuredStep, ...] = ()


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
    with workers(len(subjects)) as pool:
        accounts = [pool.submit(account_of_run, subject) for subject in subjects]
        drawn: list[list[Future[tuple[Picture, ...]]]] = []
        for subject, name, account in zip(subjects, names, accounts, strict=True):
            found = account.result()
            drawn.append([pool.submit(pictures_of_run, subject, found, name, part) for part in PARTS])
        contents = [account.result() for account in accounts]
        labels = [subject.label for subject in subjects]
        shared = shared_pictures(list(zip(labels, contents, strict=True)), pairs)
        runs = []
        for done, (subject, found, parts) in enumerate(zip(subjects, contents, drawn, strict=True), 1):
            pictures = [picture for part in parts for picture in part.result()]
            runs.append(RunReport(subject, found, tuple(sorted(pictures, key=place))))
            progress(done, len(subjects))
    return Report(shared, tuple(runs))


class InThisProcess(Executor):
    """Computes each task as it is submitted."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The result, or what was raised, in a future."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def workers(runs: int) -> Iterator[Executor]:
    """One process per core, or this one for a single run; what is left undone is dropped."""
    processes = min(runs, os.cpu_count() or 1)
    if processes < 2:
        yield InThisProcess()
        return
    # Not forked: a fork shares the position in font files that this process has open.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=prepare)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def prepare() -> None:
    """A worker's imports, which live as long as it does: no collection looks at them again."""
    from . import pictures  # noqa: F401

    gc.collect()
    gc.freeze()
    gc.disable()


def account_of_run(subject: Subject) -> Content:
    """One run's estimate, replayed as `gpuledger estimate` does."""
    found = content(estimate(subject.run, replay=True, assumptions=subject.assumptions))
    gc.collect()
    return found


def pictures_of_run(subject: Subject, found: Content, name: str, part: str) -> tuple[Picture, ...]:
    """One part of a run's charts. What they leave behind is collected once, here."""
    from .pictures import pictures_of_run

    pictures = pictures_of_run(subject, found, name, part)
    gc.collect()
    return pictures


def shared_pictures(runs: Sequence[tuple[str, Content]], pairs: Sequence[Pair]) -> tuple[Picture, ...]:
    """Charts of all runs together."""
    from .pictures import shared_pictures

    return shared_pictures(runs, pairs)


def place(picture: Picture) -> int:
    """Where a chart stands on the page."""
    return ORDER.index(picture.name.rpartition("-")[2])


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
