"""The page: template, style and script from beside this file, the contents from a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from ... import __version__
from ..build import Report
from ..compare import Comparison
from .parts import comparison_section, figure, run_section, summary

FOLDER = Path(__file__).parent


def report_page(report: Report, comparison: Comparison | None = None) -> str:
    """The whole page as one string; the same report gives the same string."""
    labels = [run.subject.label for run in report.runs]
    title = labels[0] if len(labels) == 1 else f"{len(labels)} training runs"
    shared = "".join(figure(picture, f"all-{i}-") for i, picture in enumerate(report.pictures))
    body = [f'<section id="summary"><h2>Summary</h2>{summary(report.runs)}{shared}</section>']
    if comparison is not None:
        body.append(comparison_section(comparison))
    body += [run_section(run, i) for i, run in enumerate(report.runs)]
    return filled(
        (title, "Memory and FLOPs, accounted for before the run"),
        contents(report, comparison),
        "\n".join(body),
        [run.content for run in report.runs],
    )


def filled(titles: tuple[str, str], links: str, body: str, data: object) -> str:
    """The template with its title and subtitle, links to the sections, the sections, and the numbers
    as JSON."""
    return Template(text("page.html")).substitute(
        title=escape(titles[0]),
        subtitle=escape(titles[1]),
        version=escape(__version__),
        css=text("page.css"),
        script=text("page.js"),
        contents=links,
        body=body,
        note="Everything on this page is in this one file.",
        data=json_in_script(data),
    )


def contents(report: Report, comparison: Comparison | None) -> str:
    """Links to the sections."""
    links = [
        ("summary", "Summary"),
        *([("compare", "Comparison")] if comparison else []),
        *((f"run-{i}", run.subject.label) for i, run in enumerate(report.runs)),
    ]
    return link_list(links)


def link_list(links: Sequence[tuple[str, str]]) -> str:
    """(id of a section, what it is called)."""
    items = "".join(f'<li><a href="#{name}">{escape(label)}</a></li>' for name, label in links)
    return f"<ul>{items}</ul>"


def json_in_script(values: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(values, separators=(",", ":")).replace("<", "\\u003c")


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8").rstrip()
