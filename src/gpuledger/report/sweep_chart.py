"""A sweep as a picture: bars for one varied key, a heat map for two, several for three."""

from __future__ import annotations

from collections.abc import Sequence

from .. import __version__
from ..axes import Axis
from ..config import RunOptions
from ..config.sources import Source
from ..errors import InputError
from ..sweep import Cell, Sweep
from .charts.breakdown import Bar, breakdown
from .charts.chart import Chart
from .charts.feasibility import HeatCell, HeatMap, feasibility
from .sweep_output import value_text

MOST_BARS, MOST_PANELS = 40, 6
HINT = "leave --chart out, or vary one to three keys"


def check_drawable(axes: Sequence[Axis]) -> None:
    """Raises InputError for a grid that no chart shows."""
    if len(axes) > 3:
        raise InputError(f"a chart of {len(axes)} varied keys cannot be drawn", HINT)
    if len(axes) == 1 and len(axes[0].values) > MOST_BARS:
        raise InputError(
            f"{len(axes[0].values)} bars are too many for one chart (at most {MOST_BARS})", HINT
        )
    if len(axes) == 3 and len(axes[0].values) > MOST_PANELS:
        raise InputError(
            f"{axes[0].name} has {len(axes[0].values)} values: too many heat maps for one "
            f"chart (at most {MOST_PANELS})",
            "give the key with the fewest values first",
        )


def sweep_chart(source: Source, options: RunOptions, sweep: Sweep) -> Chart:
    """Rows are the last key but one, columns the last. Raises as `check_drawable` does."""
    check_drawable(sweep.axes)
    cells = [cell for cell in sweep.cells if cell is not None]
    footer = footer_of(source, options, sweep)
    if len(sweep.axes) == 1:
        bars = [bar for cell in cells if (bar := bar_of(cell)) is not None]
        if not bars:
            raise InputError("every cell is refused: there is nothing to draw", cells[0].reason)
        return breakdown(bars, "the GPU", footer, "sweep")
    return feasibility(heat_maps(str(source), sweep.axes, cells), footer, "sweep")


def bar_of(cell: Cell) -> Bar | None:
    """None where the run is refused."""
    m = cell.memory
    if m is None:
        return None
    label = ", ".join(
        f"{key.rpartition('.')[2]} {value_text(value)}" for key, value in cell.settings.items()
    )
    return Bar(
        label,
        m.category_bytes,
        m.device_used_bytes - m.peak_allocated_bytes,
        m.device_used_bytes,
        m.capacity_bytes,
        m.fits,
    )


def heat_maps(label: str, axes: Sequence[Axis], cells: Sequence[Cell]) -> list[HeatMap]:
    """One per value of the first of three keys, or one."""
    *panels, rows, columns = axes
    size = len(rows.values) * len(columns.values)
    names = (
        [f"{panels[0].name} {value_text(value)}" for value in panels[0].values]
        if panels
        else [label]
    )
    return [
        HeatMap(
            name,
            rows.name,
            columns.name,
            [value_text(v) for v in rows.values],
            [value_text(v) for v in columns.values],
            grid(cells[i * size : (i + 1) * size], len(columns.values)),
        )
        for i, name in enumerate(names)
    ]


def grid(cells: Sequence[Cell], columns: int) -> list[list[HeatCell]]:
    found = [heat_cell(cell) for cell in cells]
    return [found[i : i + columns] for i in range(0, len(found), columns)]


def heat_cell(cell: Cell) -> HeatCell:
    """Requested bytes: the same with and without the allocator's replay."""
    m = cell.memory
    if m is None:
        return HeatCell(None, None, False, cell.reason)
    return HeatCell(m.peak_requested_bytes, m.capacity_bytes, m.fits, cell.reason)


def footer_of(source: Source, options: RunOptions, sweep: Sweep) -> str:
    """What the cells have in common, as it was asked for."""
    given = [
        f"{name.replace('_', '-')} {value}"
        for name, value in vars(options).items()
        if value is not None and name != "set"
    ]
    verdict = "reserved" if sweep.replayed else "allocated"
    return " · ".join(
        [
            f"gpuledger {__version__}",
            str(source),
            *given,
            *options.set,
            f"fits: {verdict} bytes within the capacity",
        ]
    )
