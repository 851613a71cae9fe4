"""`gpuledger plan`: from a model and a number of GPUs to the best layouts, and to the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from ..config import RunOptions
from ..errors import InputError
from ..files import write_whole
from ..planner.ask import Wishes, question_of
from ..planner.plan import Answer, plan
from .options import say
from .progress import Progress

FITS_NOT = 1
PAGE = "plan.html"


@dataclass(frozen=True)
class PlanOptions:
    """Where the answer goes, beside the table."""

    wishes: Wishes
    out: Path | None = None
    chart: Path | None = None
    request: tuple[str, ...] = field(default=())
    require_fit: bool = False
    json: bool = False


def run_plan(source: str, options: RunOptions, how: PlanOptions) -> int:
    """Print the answer, write what is asked for; 1 where a required fit is not met.

    Raises InputError, and whatever `estimate` raises for every layout.
    """
    if how.chart:
        from ..report.charts.save import check_format

        check_format(how.chart)
    question, assumptions = question_of(source, options, how.wishes)
    request = request_options(how, question.tokens) if how.out else None
    shown = Progress("layouts")
    answer = plan(question, lambda what, done, total: shown(done, total))
    shown.end()
    say("assumed", assumptions)
    if how.json:
        from ..report.plan_json import plan_json

        typer.echo(plan_json(answer))
    else:
        from ..report.plan_table import plan_table

        typer.echo(plan_table(answer))
    if answer.plans:
        say("warning", answer.plans[0].estimate.warnings)
        say("assumed", answer.plans[0].time.assumptions)
    advice = [] if answer.plans or (how.json and not how.out) else advice_lines(answer)
    if advice and not how.json:
        typer.echo("\n".join(advice))
    if how.chart:
        write_plan_chart(answer, how.chart)
    if request is not None and how.out is not None:
        write_folder(answer, how.out, request, advice)
    return FITS_NOT if how.require_fit and not answer.plans else 0


def advice_lines(answer: Answer) -> list[str]:
    """What would change a failure: more GPUs, or changes to the layout that is closest."""
    from ..planner.failure import enough_gpus, remedies

    found = enough_gpus(answer)
    return [*([] if found is None else [found]), *remedies(answer)]


def request_options(how: PlanOptions, tokens: int | None) -> Any:
    """What the request needs to know. Raises InputError where tokens are missing or a key is wrong."""
    from ..config.options import assign
    from ..config.problems import validated
    from ..config.reading import read_yaml
    from ..planner.requests import RequestOptions

    if tokens is None:
        raise InputError("a request needs to know how long the run is", "pass --tokens, for example 2T")
    values: dict[str, Any] = {"tokens": tokens}
    if how.wishes.price is not None:
        values["price_per_gpu_hour"] = how.wishes.price
    for text in how.request:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--request {text[:60]} is not key=value",
                             "for example --request partition=gpu")
        assign(values, key.strip(), read_yaml(value, f"--request {key.strip()[:60]}"))
    return validated(RequestOptions, values, "request")


def write_folder(answer: Answer, folder: Path, options: Any, advice: Sequence[str]) -> None:
    """The request of the best plan that can be launched, and the page of the answer with its chart.

    Where nothing fits there is the page alone. Raises InputError where no plan can be launched.
    """
    from ..report.html.plan_page import plan_page
    from ..report.pictures import picture
    from ..report.plan_chart import plan_chart

    files, notes = requested(answer, options) if answer.plans else ({}, advice)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(folder / name, text)
    shown = picture(plan_chart(answer), ("svg", "png"))
    for file_format, data in shown.files.items():
        write_whole(folder / f"{shown.name}.{file_format}", data)
    write_whole(folder / PAGE, plan_page(answer, shown, files, notes))
    for note in notes if answer.plans else ():
        typer.echo(note, err=True)
    typer.echo(f"wrote {folder / PAGE}", err=True)


def requested(answer: Answer, options: Any) -> tuple[dict[str, str], list[str]]:
    """The files of the request (run file, launcher, batch jobs, the page that asks), by name; and
    which plan they are of, and why no better one. Raises InputError where no plan can be launched."""
    from ..planner.requests import first_request

    chosen = first_request([(best.estimate, best.time) for best in answer.plans], options)
    notes = [f"plan {number + 1} cannot be requested: {problem.message}"
             for number, problem in chosen.passed_over]
    return chosen.files, [*notes, f"the request is for plan {chosen.number + 1}"]


def write_plan_chart(answer: Answer, path: Path) -> None:
    """Layouts by step time and memory."""
    from ..report.charts.save import write_chart
    from ..report.plan_chart import plan_chart

    write_chart(path, plan_chart(answer))
    typer.echo(f"wrote {path}", err=True)
