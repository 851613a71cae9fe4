"""A report as Markdown: summary, charts as images, the largest entries, the run file."""

from __future__ import annotations

from collections.abc import Sequence

from ..units import gib, scaled
from .build import Picture, Report, RunReport
from .compare import Comparison, Figure
from .contents import CATEGORIES, worst_stage
from .markdown_table import escaped, table
from .run_file import run_file

LARGEST = 15  # entries that are listed


def report_markdown(report: Report, comparison: Comparison | None = None) -> str:
    """The whole report; images are beside it in the same folder."""
    blocks = ["# Memory and FLOPs of training runs", summary(report.runs)]
    if comparison is not None:
        blocks.append(comparison_markdown(comparison))
    blocks += [image(picture) for picture in report.pictures]
    for run in report.runs:
        blocks += run_blocks(run)
    return "\n\n".join(blocks) + "\n"


def summary(runs: Sequence[RunReport]) -> str:
    """One row per run."""
    rows = []
    for run in runs:
        memory, flops = run.content["memory"], run.content["flops"]
        stage = worst_stage(run.content)
        rows.append(
            [
                run.subject.label,
                "yes" if memory["fits"] else "no",
                *(gib(stage[f"{name}_bytes"]) for name in CATEGORIES),
                gib(stage["peak_allocated_bytes"]),
                gib(stage["peak_reserved_bytes"]),
                gib(memory["capacity_bytes"]),
                stage["peak_instant"],
                scaled(flops["model_flops_per_step"], "FLOP"),
            ]
        )
    return table(
        [
            "run",
            "fits",
            *CATEGORIES,
            "peak allocated",
            "peak reserved",
            "capacity",
            "peak at",
            "model FLOPs per step",
        ],
        rows,
    )


def run_blocks(run: RunReport) -> list[str]:
    """One run: charts, ledger, what was assumed, the file."""
    largest = sorted(run.content["entries"], key=lambda entry: -entry["bytes"])[:LARGEST]
    rows = [
        [
            e["name"],
            e["category"],
            f"{e['bytes']:,}",
            gib(e["bytes"]),
            e["detail"],
            f"[{e['equation']}]" if e["equation"] else "",
        ]
        for e in largest
        if e["bytes"]
    ]
    notes = [
        *(f"* assumed: {line}" for line in run.content["assumptions"]),
        *(f"* warning: {line}" for line in run.content["warnings"]),
    ]
    return [
        f"## {run.subject.label}",
        *(image(picture) for picture in run.pictures),
        f"The {len(rows)} largest of {len(run.content['entries'])} entries live at the peak, "
        f"{worst_stage(run.content)['peak_instant']}:",
        table(["entry", "category", "bytes", "", "count x what", "formula"], rows),
        *(["\n".join(notes)] if notes else []),
        f"```yaml\n{run_file(run.subject.run)}```",
    ]


def comparison_markdown(comparison: Comparison) -> str:
    """Settings that differ, then figures, differences first."""
    first, second = comparison.labels
    settings = table(
        ["setting that differs", first, second],
        [[s.key, str(s.first), str(s.second)] for s in comparison.settings],
    )

    def rows(figures: Sequence[Figure]) -> list[list[str]]:
        return [[f.name, f.text(f.first), f.text(f.second), f.difference_text] for f in figures]

    differing = [f for f in comparison.entries if f.difference]
    return "\n\n".join(
        (
            f"## {first} and {second}",
            comparison.verdict + ".",
            settings,
            table(["", first, second, "difference"], rows(comparison.figures)),
            table(["live at the peak", first, second, "difference"], rows(differing)),
        )
    )


def image(picture: Picture) -> str:
    """The SVG, with its description for those who cannot see it."""
    return f"![{escaped(picture.description)}]({picture.name}.svg)"
