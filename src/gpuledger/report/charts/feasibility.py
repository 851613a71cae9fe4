"""Which combinations of two settings fit: a heat map with the peak in each cell, OOM hatched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from gpuledger.units import GIB, gib

from .chart import Chart
from .layout import Body, Frame, Heading, shortened, text_width, wrapped
from .style import (
    ALARM,
    INK,
    MUTED,
    ON_DARK,
    ON_PALE,
    PALE,
    PAPER,
    RULE,
    SMALL_POINTS,
    TEXT_POINTS,
    styled,
)

LOWEST, HIGHEST = 0.08, 0.95  # of the colour map: paper-white and black are no data
CELL_HEIGHT, SMALLEST_CELL = 0.27, 0.045  # inches
LARGEST_HEIGHT, PANEL_GAP = 3.6, 0.14
MOST_TICKS = 24


@dataclass(frozen=True)
class HeatCell:
    """One combination. nbytes is None where the run is refused; reason says why it does not fit."""

    nbytes: int | None
    capacity_bytes: int | None
    fits: bool
    reason: str = ""


@dataclass(frozen=True)
class HeatMap:
    """cells[row][column]; rows[0] is at the bottom. chosen: (row, column) of the run itself."""

    label: str
    row_name: str
    column_name: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[HeatCell]]
    counter: str = "requested"
    chosen: tuple[int, int] | None = None


@styled
def feasibility(panels: Sequence[HeatMap], footer: str, name: str = "feasibility") -> Chart:
    """One panel per heat map, side by side; they share their axes and their colours."""
    first = panels[0]
    heading = Heading(
        title_of(panels),
        f"Peak {first.counter} memory of one GPU, GiB (the allocator's cache not "
        "counted); hatched: does not fit, × capacity",
        footer,
    )
    height = min(max(CELL_HEIGHT * len(first.rows), 0.8), LARGEST_HEIGHT)
    left = max(text_width(row) for row in first.rows) + 0.45
    above = 0.3 if len(panels) > 1 else 0.12
    frame = Frame(heading, Body(height, left=left, right=0.2, below=0.5, above=above))
    chart = Chart(name, heading.title, description_of(panels), frame.figure)
    gap = PANEL_GAP / frame.width if len(panels) > 1 else 0.0
    share = (1 - gap * (len(panels) - 1)) / len(panels)
    for number, panel in enumerate(panels):
        axes = frame.axes(number * (share + gap), share)
        width = share * frame.width / len(panel.columns)
        draw_panel(chart, axes, panel, width, height / len(panel.rows))
        label_axes(axes, panel, first=number == 0)
        if len(panels) > 1:
            title = shortened(panel.label, share * frame.width, TEXT_POINTS)
            axes.annotate(
                title,
                (0.5, 1.0),
                xycoords="axes fraction",
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
            )
    return chart


def title_of(panels: Sequence[HeatMap]) -> str:
    """The largest product of row and column that fits, or that none does."""
    cells = [cell for panel in panels for row in panel.cells for cell in row]
    fitting = sum(cell.fits for cell in cells)
    subject = (
        panels[0].label if len(panels) == 1 else f"{panels[0].row_name} and {panels[0].column_name}"
    )
    if not fitting:
        return f"{subject}: none of {len(cells):,} combinations fits"
    if fitting == len(cells):
        return f"{subject}: all {len(cells):,} combinations fit"
    used = [
        cell.nbytes / cell.capacity_bytes
        for cell in cells
        if cell.fits and cell.nbytes and cell.capacity_bytes
    ]
    return (
        f"{subject}: {fitting:,} of {len(cells):,} combinations fit, "
        f"the fullest at {100 * max(used):.0f} % of its GPU"
    )


def description_of(panels: Sequence[HeatMap]) -> str:
    """Row by row, the last column that fits."""
    words = []
    for panel in panels:
        for row, cells in zip(panel.rows, panel.cells, strict=True):
            fitting = [c for c, cell in zip(panel.columns, cells, strict=True) if cell.fits]
            words.append(
                f"{panel.row_name} {row}: "
                + (f"fits up to {panel.column_name} {fitting[-1]}" if fitting else "nothing fits")
            )
    return f"Heat map of {panels[0].row_name} and {panels[0].column_name}. " + "; ".join(words[:40])


def draw_panel(chart: Chart, axes: Axes, panel: HeatMap, width: float, height: float) -> None:
    """Cells, the staircase between what fits and what does not, a frame around the run itself."""
    axes.set_xlim(-0.5, len(panel.columns) - 0.5)
    axes.set_ylim(-0.5, len(panel.rows) - 0.5)
    roomy = width > SMALLEST_CELL * 4 and height > 0.13
    for i, row in enumerate(panel.cells):
        for j in range(len(row)):
            draw_cell(chart, axes, panel, (i, j), width if roomy else 0.0)
    draw_frontier(axes, panel)
    if panel.chosen is not None:
        i, j = panel.chosen
        axes.add_artist(
            Rectangle(
                (j - 0.5, i - 0.5), 1, 1, facecolor="none", edgecolor=INK, linewidth=1.6, zorder=4
            )
        )


def draw_cell(
    chart: Chart, axes: Axes, panel: HeatMap, place: tuple[int, int], width: float
) -> None:
    """width: inches for the number, 0 where there is no room for any."""
    i, j = place
    cell = panel.cells[i][j]
    colour = PAPER if cell.nbytes is None else colour_of(cell)
    patch = Rectangle(
        (j - 0.5, i - 0.5),
        1,
        1,
        facecolor=colour,
        edgecolor=RULE if cell.nbytes is None or not cell.fits else PAPER,
        linewidth=0.6 if width else 0.0,
        hatch=None if cell.fits or cell.nbytes is None else "/////",
    )
    axes.add_artist(patch)
    label = f"{panel.row_name} {panel.rows[i]}, {panel.column_name} {panel.columns[j]}"
    values: dict[str, Any] = {} if cell.nbytes is None else {"bytes": cell.nbytes}
    text = "refused" if cell.nbytes is None else gib(cell.nbytes)
    chart.mark(
        patch,
        label,
        f"{text}. {cell.reason}" if cell.reason else text,
        status="fits" if cell.fits else "refused" if cell.nbytes is None else "does not fit",
        **values,
    )
    shown = next((s for s in texts_of(cell) if text_width(s, SMALL_POINTS) + 0.05 < width), "")
    if shown:
        box = None if cell.fits else {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
        axes.text(
            j,
            i,
            shown,
            ha="center",
            va="center",
            fontsize=SMALL_POINTS,
            color=ink_on(colour) if cell.fits else MUTED if cell.nbytes is None else ALARM,
            bbox=box,
        )


def texts_of(cell: HeatCell) -> list[str]:
    """What may stand in the cell, the longest first."""
    if cell.nbytes is None or cell.capacity_bytes is None:
        return ["–"]
    if cell.fits:
        return [f"{cell.nbytes / GIB:.1f}", f"{cell.nbytes / GIB:.0f}"]
    factor = cell.nbytes / cell.capacity_bytes
    if factor < 1.1:
        return [f"{factor:.2f}×", ">1×"]
    return [f"{factor:.1f}×" if factor < 99.95 else f"{factor:,.0f}×", f"{factor:.0f}×"]


def colour_of(cell: HeatCell) -> tuple[float, float, float, float] | str:
    """Blue by the share of the capacity; what does not fit is paper under its hatching."""
    if not cell.fits or not cell.capacity_bytes or cell.nbytes is None:
        return PALE
    share = min(cell.nbytes / cell.capacity_bytes, 1.0)
    red, green, blue, alpha = matplotlib.colormaps["Blues"](LOWEST + (HIGHEST - LOWEST) * share)
    return float(red), float(green), float(blue), float(alpha)


def ink_on(colour: tuple[float, float, float, float] | str) -> str:
    """Dark ink on light cells and light ink on dark ones, by relative luminance."""
    if isinstance(colour, str):
        return ON_PALE
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]
    )
    return ON_PALE if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.26 else ON_DARK


def draw_frontier(axes: Axes, panel: HeatMap) -> None:
    """A line between neighbours of which one fits and the other does not."""
    lines: list[tuple[list[float], list[float]]] = []
    for i, row in enumerate(panel.cells):
        for j, here in enumerate(row):
            if j + 1 < len(row) and differ(here, row[j + 1]):
                lines.append(([j + 0.5] * 2, [i - 0.5, i + 0.5]))
            if i + 1 < len(panel.cells) and differ(here, panel.cells[i + 1][j]):
                lines.append(([j - 0.5, j + 0.5], [i + 0.5] * 2))
    for xs, ys in lines:
        axes.plot(xs, ys, color=ALARM, linewidth=1.4, zorder=3, solid_capstyle="round")


def differ(one: HeatCell, other: HeatCell) -> bool:
    """One of two known cells fits and the other does not."""
    return None not in (one.nbytes, other.nbytes) and one.fits != other.fits


def label_axes(axes: Axes, panel: HeatMap, *, first: bool) -> None:
    """As many tick labels as there is room for."""
    box = axes.get_window_extent()
    width = box.width / axes.figure.dpi / len(panel.columns)
    widest = max(text_width(column) for column in panel.columns) + 0.08
    every = max(1, int(-(-widest // width)))
    inside = [
        j
        for j in range(0, len(panel.columns), every)
        if text_width(panel.columns[j]) / 2
        < (min(j, len(panel.columns) - 1 - j) + 0.5) * width + PANEL_GAP / 2
    ]
    axes.set_xticks(inside, [panel.columns[j] for j in inside])
    most = max(1, int(box.height / axes.figure.dpi / 0.16))
    every = -(-len(panel.rows) // min(most, MOST_TICKS))
    axes.set_yticks(range(0, len(panel.rows), every), list(panel.rows)[::every] if first else [])
    axes.tick_params(length=0)
    axes.set_xlabel(
        "\n".join(wrapped(panel.column_name, box.width / axes.figure.dpi, TEXT_POINTS, most=1))
    )
    if first:
        axes.set_ylabel(shortened(panel.row_name, box.height / axes.figure.dpi + 0.3, TEXT_POINTS))
    for spine in axes.spines.values():
        spine.set_visible(False)
