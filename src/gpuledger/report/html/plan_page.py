"""The page of a plan: the question, the answer, the plans as a table, their chart, the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ...planner.plan import Answer, front_of
from ...units import gib_cell
from ..build import Picture
from ..plan_chart import label_of
from ..plan_json import plan_content
from ..plan_table import failure, framework_of, heading, layout_of, remarks, sentence
from .page import filled, link_list
from .parts import figure, file_block, number, sorting_heads, table

PLAN_COLUMNS = (
    ("no.", True), ("GPUs", True), ("framework", False), ("layout", False), ("step s", True),
    ("from", True), ("to", True), ("tokens/s/GPU", True), ("MFU", True), ("allocated GiB", True),
    ("reserved GiB", True), ("left GiB", True), ("days", True), ("GPU hours", True),
)  # fmt: skip
FRONT_COLUMNS = (("layout", False), ("framework", False), ("step s", True), ("GiB", True))


def plan_page(
    answer: Answer, picture: Picture, files: Mapping[str, str], notes: Sequence[str] = ()
) -> str:
    """The whole page. files: of the request, by name. notes: lines that stand under the answer.

    Its numbers are those of `plan --json`, which it holds.
    """
    content = plan_content(answer)
    title, *asked = heading(answer).split("\n")
    sections = [
        ("answer", "Answer", paragraphs((*asked, *answer_lines(answer))) + note_list(answer, notes)),
        ("plans", "Plans" if answer.plans else "Closest layouts", plans_table(answer, content)),
        ("chart", "Memory and time", figure(picture, "plan-")),
        ("front", "Less memory for more time", front_table(answer, content)),
        ("request", "The request", request(files)),
    ]
    shown = [section for section in sections if section[2]]
    return filled(
        (title, "Every layout by memory and step time, before the GPUs are asked for"),
        link_list([(name, label) for name, label, _ in shown]),
        "\n".join(f'<section id="{name}"><h2>{label}</h2>{body}</section>' for name, label, body in shown),
        content,
    )


def answer_lines(answer: Answer) -> list[str]:
    """The best plan, or what misses."""
    return (sentence(answer) if answer.plans else failure(answer)).split("\n")


def paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def note_list(answer: Answer, notes: Sequence[str]) -> str:
    """What stands beside the answer."""
    lines = [line for line in (*remarks(answer).split("\n"), *notes) if line]
    return f'<ul class="notes">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def plans_table(answer: Answer, content: Mapping[str, Any]) -> str:
    """One row a plan (or closest layout), best first; every column sorts."""
    plans, found = (answer.plans, "plans") if answer.plans else (answer.over, "closest")
    rows = []
    for rank, (plan, values) in enumerate(zip(plans, content[found], strict=True), 1):
        time, memory = values["time"], values["memory"]
        seconds = [time["step_seconds"], time["low_seconds"], time["high_seconds"]]
        sizes = ("peak_allocated_bytes", "peak_reserved_bytes", "headroom_bytes")
        gpus, mfu = plan.run.cluster.gpus, time["mfu"]
        cells = [
            number(str(rank), rank), number(f"{gpus:,}", gpus),
            f"<td>{escape(framework_of(plan.run))}</td>"
            f'<th scope="row">{escape(layout_of(plan.run))}</th>',
            *(number("?" if value is None else f"{value:.4g}", value) for value in seconds),
            number(f"{time['tokens_per_second_per_gpu']:,.0f}", time["tokens_per_second_per_gpu"]),
            number("?" if mfu is None else f"{100 * mfu:.1f} %", mfu),
            *(number("?" if memory[key] is None else gib_cell(memory[key]), memory[key]) for key in sizes),
            *(number("?" if time[key] is None else f"{time[key]:,.1f}", time[key])
              for key in ("days", "gpu_hours")),
        ]  # fmt: skip
        rows.append(f"<tr>{''.join(cells)}</tr>")
    if not rows:
        return ""
    heads = sorting_heads(PLAN_COLUMNS, "no.", "ascending")
    return f'<div class="sortable" id="plans-table">{table(heads, rows, caption="Best first")}</div>'


def front_table(answer: Answer, content: Mapping[str, Any]) -> str:
    """The layouts that no other beats in both, fastest first."""
    if not answer.plans:
        return ""
    rows = [
        f'<tr><th scope="row">{escape(label_of(answer, i))}</th>'
        f"<td>{escape(values['framework'] or 'none')}</td>"
        + number(f"{values['step_seconds']:.4g}", values["step_seconds"])
        + number(gib_cell(values["neutral_allocated_bytes"]), values["neutral_allocated_bytes"])
        + "</tr>"
        for i, values in zip(front_of(answer).tolist(), content["pareto"], strict=True)
    ]
    heads = sorting_heads(FRONT_COLUMNS, "step s", "ascending")
    return (
        "<p>No other layout that fits is faster with less memory. Memory is that of the fullest GPU, without a "
        f"framework's buffers.</p><div class=\"sortable\" id=\"front-table\">{table(heads, rows)}</div>"
    )


def request(files: Mapping[str, str]) -> str:
    """Every file with its name and a button that copies it."""
    return "".join(
        file_block(f"request-{i}", content, name, f"{len(content.splitlines())} lines")
        for i, (name, content) in enumerate(files.items())
    )
