"""Pieces of the page: summary, figures, ledger, run file, comparison."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from ...formulas import formulas
from ...units import count, gib, scaled
from ..build import Picture, RunReport
from ..compare import Comparison, Figure
from ..contents import CATEGORIES, Content, worst_stage
from ..run_file import run_file
from .inline_svg import inline_svg


def table(headers: Sequence[str], rows: Sequence[str], *, caption: str = "") -> str:
    """headers: th elements or their texts."""
    heads = "".join(
        h if h.startswith("<th") else f'<th scope="col">{escape(h)}</th>' for h in headers
    )
    title = f'<caption class="skip">{escape(caption)}</caption>' if caption else ""
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{heads}</tr></thead><tbody>'
        f"{''.join(rows)}</tbody></table></div>"
    )


def number(text: str, value: float | None = None) -> str:
    """A right-aligned cell; `value` is what it is sorted by, exactly."""
    data = "" if value is None else f' data-value="{value}"'
    return f'<td class="number"{data}>{escape(text)}</td>'


def bytes_cell(nbytes: int | None) -> str:
    return number("?" if nbytes is None else gib(nbytes), nbytes)


def summary(runs: Sequence[RunReport]) -> str:
    """One row per run: what it is, what it needs, whether it fits."""
    rows = []
    for i, run in enumerate(runs):
        memory, stage = run.content["memory"], worst_stage(run.content)
        verdict = (
            '<td class="verdict yes">fits</td>'
            if memory["fits"]
            else '<td class="verdict no">does not fit</td>'
        )
        parameters = run.content["parameters"]["total"]
        rows.append(
            f'<tr><th scope="row"><a href="#run-{i}">{escape(run.subject.label)}</a>'
            f'<small data-value="{parameters}">{count(parameters)} parameters</small></th>{verdict}'
            + "".join(bytes_cell(stage[f"{name}_bytes"]) for name in CATEGORIES)
            + bytes_cell(stage["peak_allocated_bytes"])
            + bytes_cell(stage["peak_reserved_bytes"])
            + bytes_cell(memory["capacity_bytes"])
            + bytes_cell(memory["headroom_bytes"])
            + number(
                scaled(run.content["flops"]["model_flops_per_step"], "FLOP"),
                run.content["flops"]["model_flops_per_step"],
            )
            + "</tr>"
        )
    numbers = [
        *(swatched(name) for name in CATEGORIES),
        "peak allocated",
        "peak reserved",
        "capacity",
        "left",
        "model FLOPs per step",
    ]
    heads = [
        f'<th scope="col" class="number">{n if n.startswith("<") else escape(n)}</th>'
        for n in numbers
    ]
    return table(["run", "verdict", *heads], rows, caption="All runs, one GPU of each at its peak")


def swatched(category: str) -> str:
    """The name of a category beside its colour."""
    return f'<span class="swatch" style="background:var(--{category})"></span>{escape(category)}'


def figure(picture: Picture, prefix: str) -> str:
    """The chart, and its numbers as a table for those who do not see it."""
    rows = [
        f"<tr><td>{escape(label)}</td><td>{escape(text)}</td></tr>"
        for label, text in picture.numbers
    ]
    numbers = (
        f"<details><summary>Numbers of this chart</summary>"
        f"{table(['what', 'value'], rows)}</details>"
        if rows
        else ""
    )
    return (
        f'<figure class="chart" id="{prefix}figure" tabindex="0" aria-label="'
        f'{escape(picture.title)}. Arrow keys read its values">'
        f"{inline_svg(picture, prefix)}{numbers}</figure>"
    )


def run_section(run: RunReport, number_of_run: int) -> str:
    """Everything about one run."""
    name = f"run-{number_of_run}"
    stage, memory = worst_stage(run.content), run.content["memory"]
    left = memory["headroom_bytes"]
    verdict = (
        f'<span class="yes">fits</span>, {gib(left)} left'
        if memory["fits"]
        else f'<span class="no">does not fit</span>, {gib(-left)} too much'
    )
    figures = "".join(figure(picture, f"{name}-{i}-") for i, picture in enumerate(run.pictures))
    return (
        f'<section id="{name}"><h2>{escape(run.subject.label)}</h2>'
        f"<p>{verdict} of {gib(memory['capacity_bytes'])}. Peak in "
        f"{escape(stage['peak_instant'])}.</p>{notes(run.content)}{figures}"
        f"<h3>Ledger of the peak</h3>{ledger(run.content, name)}"
        f"{file_block(name, run_file(run.subject.run), 'Run file', 'gpuledger estimate FILE')}</section>"
    )


def notes(content: Content) -> str:
    """What was assumed and what is not included."""
    lines = [
        *(f"<li>assumed: {escape(text)}</li>" for text in content["assumptions"]),
        *(f"<li>warning: {escape(text)}</li>" for text in content["warnings"]),
    ]
    return (
        f'<details open><summary>Assumptions and warnings</summary><ul class="notes">'
        f"{''.join(lines)}</ul></details>"
        if lines
        else ""
    )


def sorting_heads(
    columns: Sequence[tuple[str, bool]], by: str = "", order: str = "descending"
) -> list[str]:
    """th elements with buttons that sort; (label, whether it is a number). by: the column that the
    rows are sorted by."""
    kinds = {True: ' class="number"', False: ""}
    return [
        f'<th scope="col"{kinds[numeric]} aria-sort="{order if label == by else "none"}">'
        f'<button type="button">{escape(label)}</button></th>'
        for label, numeric in columns
    ]


def file_block(name: str, content: str, heading: str, told: str) -> str:
    """A file's text with a button that copies it. name: of its ids. told: what stands beside it."""
    return (
        f'<h3>{escape(heading)}</h3><div class="controls"><button type="button" class="copy" '
        f'data-copies="{name}-file">Copy</button><output>{escape(told)}</output></div>'
        f'<pre id="{name}-file" tabindex="0">{escape(content)}</pre>'
    )


def ledger(content: Content, name: str) -> str:
    """Every entry with its formula; sortable and filterable, the largest first."""
    rows = [
        entry_row(entry, content)
        for entry in sorted(content["entries"], key=lambda entry: -int(entry["bytes"]))
    ]
    columns = ("entry", False), ("category", False), ("bytes", True), ("GiB", True), ("count", True)
    heads = sorting_heads([*columns, ("what", False), ("formula and source", False)], "bytes")
    options = "".join(f"<option>{category}</option>" for category in CATEGORIES)
    return (
        f'<div class="ledger" id="{name}-ledger"><div class="controls">'
        f'<label>Filter <input type="search" placeholder="attention bfloat16"></label>'
        f'<label>Category <select><option value="">all</option>{options}</select></label>'
        f'<output aria-live="polite"></output></div>'
        f"{table(heads, rows, caption='What is live at the peak')}</div>"
    )


def entry_row(entry: dict[str, Any], content: Content) -> str:
    """One kind of tensor."""
    nbytes, category = int(entry["bytes"]), entry["category"]
    share = 100 * nbytes / worst_stage(content)["peak_allocated_bytes"]
    bar = f'<span class="bar" style="width:{share:.2f}%;background:var(--{category})"></span>'
    return (
        f'<tr data-category="{category}" data-bytes="{nbytes}"><td>{escape(entry["name"])}</td>'
        f'<td class="category">{swatched(category)}</td>'
        f"{number(f'{nbytes:,}', nbytes)}"
        f'<td class="number" data-value="{nbytes}">{gib(nbytes)}{bar}</td>'
        f"{number(str(entry['count']), entry['count'])}<td>{escape(entry['detail'])}</td>"
        f'<td class="why">{explained(entry["equation"])}</td></tr>'
    )


def explained(equation: str) -> str:
    """The row of docs/formulas.md: what it is the formula of, the formula, its source."""
    formula = formulas().get(equation)
    if formula is None:
        return f"[{escape(equation)}]" if equation else ""
    return (
        f"[{formula.id}] {marked_up(formula.quantity)}: {marked_up(formula.equation)}"
        f"<small>{marked_up(formula.source)}</small>"
    )


def marked_up(text: str) -> str:
    """Markdown's `code` as HTML."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def comparison_section(comparison: Comparison) -> str:
    """Two runs, differences first."""
    first, second = comparison.labels
    settings = [
        f"<tr><td>{escape(s.key)}</td><td>{escape(str(s.first))}</td>"
        f"<td>{escape(str(s.second))}</td></tr>"
        for s in comparison.settings
    ]
    differing = [figure for figure in comparison.entries if figure.difference]
    equal = [figure for figure in comparison.entries if not figure.difference]
    headers = [first, second, "difference"]
    heads = [f'<th scope="col" class="number">{escape(head)}</th>' for head in headers]
    return (
        f'<section id="compare"><h2>{escape(first)} and {escape(second)}</h2>'
        f"<p>{escape(comparison.verdict)}.</p>"
        f"<h3>Settings that differ</h3>{table(['key', first, second], settings)}"
        f"<h3>Figures</h3>{table(['', *heads], [difference_row(f) for f in comparison.figures])}"
        f"<h3>Live at the peak</h3>"
        f"{table(['entry', *heads], [difference_row(f) for f in differing])}"
        f"<details><summary>{len(equal)} entries are equal</summary>"
        f"{table(['entry', *heads], [difference_row(f) for f in equal])}</details></section>"
    )


def difference_row(row: Figure) -> str:
    """A number of both runs; what is equal is muted."""
    same = "" if row.difference else ' class="same"'
    return (
        f"<tr{same}><td>{escape(row.name)}</td>{number(row.text(row.first), row.first)}"
        f"{number(row.text(row.second), row.second)}"
        f"{number(row.difference_text, row.difference)}</tr>"
    )
