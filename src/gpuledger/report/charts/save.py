"""Charts as files: SVG with the exact value of every mark, PNG, PDF. Equal input, equal bytes."""

from __future__ import annotations

import re
from html import escape
from io import BytesIO
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.files import write_whole

from .chart import Chart, Mark
from .style import styled

FORMATS = ("svg", "png", "pdf")
NO_DATES: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": "gpuledger", "Producer": None},
}
GROUP = re.compile(r'<g id="(mark-\d+)">')
PREAMBLE = re.compile(r"\A.*?(?=<svg)|<metadata>.*?</metadata>\s*", re.DOTALL)


def check_format(path: Path) -> str:
    """The format that a file name asks for. Raises InputError where it is none of FORMATS."""
    found = path.suffix.lower().lstrip(".")
    if found not in FORMATS:
        raise InputError(
            f"{path}: charts are written as {', '.join(FORMATS)}", f"name it {path.stem}.svg"
        )
    return found


def write_chart(path: Path, chart: Chart) -> Path:
    """Write a chart in the format of the file's name. Raises InputError."""
    return write_whole(path, rendered(chart, check_format(path)))


@styled
def rendered(chart: Chart, file_format: str) -> bytes:
    """The bytes of the chart's file."""
    buffer = BytesIO()
    chart.figure.savefig(buffer, format=file_format, metadata=NO_DATES[file_format])
    data = buffer.getvalue()
    return annotated(data.decode(), chart).encode() if file_format == "svg" else data


def annotated(svg: str, chart: Chart) -> str:
    """The SVG with its title and description, and with label and values on every mark."""

    def described(found: re.Match[str]) -> str:
        mark = chart.marks[found[1]]
        return (
            f'<g id="{found[1]}" class="mark"{_attributes(mark)}>'
            f"<title>{escape(mark.label)}: {escape(mark.text)}</title>"
        )

    svg = GROUP.sub(described, PREAMBLE.sub("", svg)).replace(" \n", "\n")
    root, rest = svg.split(">", 1)
    root = re.sub(r' xmlns:xlink="[^"]*"', "", root) if "xlink:" not in rest else root
    return (
        f'{root} role="img" aria-label="{escape(chart.description)}">'
        f"<title>{escape(chart.title)}</title><desc>{escape(chart.description)}</desc>{rest}"
    )


def _attributes(mark: Mark) -> str:
    given = {"label": mark.label, "text": mark.text, **mark.values}
    if mark.silent:
        given["silent"] = "true"
    return "".join(
        f' data-{name.replace("_", "-")}="{escape(str(value))}"' for name, value in given.items()
    )
