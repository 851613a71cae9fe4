"""Live bytes over one step, tensor by tensor, with the peak named; measured lines on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from gpuledger.units import GIB, gib

from .chart import Chart
from .layout import Body, Frame, Heading, shortened, spread, text_width
from .levels import Line, dashes_of, draw_lines, draw_measured, verdict
from .style import (
    ALARM,
    COLOURS,
    INK,
    MUTED,
    PAPER,
    SMALL_POINTS,
    TEXT_POINTS,
    WIDTH_INCHES,
    styled,
)

BANDS = ("parameters", "optimizer", "gradients", "buffers", "activations")
POINTS = 300  # columns that are drawn; the highest moment of each is kept
SLICES = 80  # columns that answer to the mouse


@dataclass(frozen=True)
class Timeline:
    """One step. Bytes of each category after every allocation and free.

    phases: (number of events before it, name), in order. peak: index of the highest moment.
    lines: other levels, such as what the allocator holds. measured: the same level, as it was seen.
    """

    label: str
    category_bytes: Mapping[str, Any]
    phases: Sequence[tuple[int, str]]
    peak: int
    peak_name: str
    capacity_bytes: int
    lines: Sequence[Line] = ()
    measured: Sequence[Line] = ()

    @property
    def total_bytes(self) -> Any:
        """The level after each event."""
        return sum(np.asarray(self.category_bytes[name]) for name in BANDS)


@styled
def timeline(data: Timeline, footer: str, name: str = "timeline") -> Chart:
    """Stacked areas, parameters at the bottom, activations on top."""
    total = data.total_bytes
    peak_bytes = int(total[data.peak])
    heading = Heading(
        title_of(data, peak_bytes),
        "Requested bytes of one GPU after each allocation and free of a step, GiB"
        + "".join(f"; {text}" for text in dashes_of(data.measured)),
        footer,
    )
    right = max(text_width(band_text(data, name), SMALL_POINTS) for name in BANDS) + 0.31
    frame = Frame(heading, Body(2.5, left=0.55, right=right, below=0.42, above=0.2))
    axes = frame.axes()
    top = max([peak_bytes, *(line.peak_bytes for line in (*data.lines, *data.measured))]) / GIB
    near = data.capacity_bytes / GIB < 1.6 * top
    top = max(top, data.capacity_bytes / GIB) if near else top
    axes.set(xlim=(0, len(total)), ylim=(0, top * 1.18), xlabel="allocations and frees, in order")
    axes.set_ylabel("GiB")
    chart = Chart(name, heading.title, description_of(data, peak_bytes), frame.figure)
    columns = highest_of_each(total, POINTS, data.peak)
    draw_bands(chart, axes, data, columns)
    draw_lines(chart, axes, data.lines)
    draw_measured(chart, axes, data.measured, columns_of(total, POINTS))
    if near:
        draw_capacity(axes, data)
    draw_phases(frame, axes, data, len(total))
    draw_peak(chart, frame, axes, data, peak_bytes)
    draw_band_names(frame, axes, data)
    add_slices(chart, axes, data)
    return chart


def title_of(data: Timeline, peak_bytes: int) -> str:
    """The peak, and how far off each measured one is."""
    title = f"{data.label}: {gib(peak_bytes)} at the peak, in {data.peak_name}"
    return "; ".join([title, *(verdict(line, peak_bytes) for line in data.measured)])


def description_of(data: Timeline, peak_bytes: int) -> str:
    """The peak in words."""
    parts = ", ".join(band_text(data, name) for name in BANDS)
    return (
        f"Areas of live memory over a step of {data.label}. Peak {gib(peak_bytes)} in "
        f"{data.peak_name}: {parts}. Capacity {gib(data.capacity_bytes)}"
        + "".join(f". {verdict(line, peak_bytes)}" for line in data.measured)
    )


def band_text(data: Timeline, name: str) -> str:
    return f"{name} {gib(int(data.category_bytes[name][data.peak]))}"


def highest_of_each(total: Any, columns: int, peak: int) -> Any:
    """Indices of the highest level of each column, so that no spike is lost, and the peak."""
    found = [
        start + int(np.argmax(total[start:end])) for start, end in pairwise(columns_of(total, columns))
    ]
    return np.unique([0, *found, peak, len(total) - 1])


def columns_of(total: Any, columns: int) -> Any:
    """Their edges, in events."""
    return np.unique(np.linspace(0, len(total), columns + 1).astype(int))


def draw_bands(chart: Chart, axes: Axes, data: Timeline, columns: Any) -> None:
    base = np.zeros(len(columns))
    for name in BANDS:
        level = base + np.asarray(data.category_bytes[name])[columns] / GIB
        area = axes.fill_between(
            columns,
            base,
            level,
            facecolor=COLOURS[name],
            edgecolor=PAPER,
            linewidth=0.0 if name == BANDS[-1] else 0.4,
            step="mid",
        )
        nbytes = int(data.category_bytes[name][data.peak])
        chart.mark(area, f"{name} at the peak", gib(nbytes), bytes=nbytes)
        base = level


def draw_capacity(axes: Axes, data: Timeline) -> None:
    axes.axhline(data.capacity_bytes / GIB, color=PAPER, linewidth=2.6, alpha=0.8)
    axes.axhline(data.capacity_bytes / GIB, color=ALARM, linewidth=1.0)


def draw_phases(frame: Frame, axes: Axes, data: Timeline, num_events: int) -> None:
    """A line where each phase begins and its name above it, in the order of the step."""
    starts = [start for start, _ in data.phases]
    ends = [*starts[1:], num_events]
    inches = frame.width / num_events
    centres = [(start + end) / 2 * inches for start, end in zip(starts, ends, strict=True)]
    names = [name for _, name in data.phases]
    places = spread(
        centres, [text_width(name, SMALL_POINTS) for name in names], 0, frame.width, 0.1
    )
    y = frame.bottom + frame.body.height + 0.04
    for start in starts[1:]:
        axes.axvline(start, color=MUTED, linewidth=0.6, linestyle=(0, (2, 2)))
    for name, place in zip(names, places, strict=True):
        frame.text(
            frame.body.left + place,
            y,
            name,
            ha="center",
            va="bottom",
            color=MUTED,
            fontsize=SMALL_POINTS,
        )


def draw_peak(chart: Chart, frame: Frame, axes: Axes, data: Timeline, peak_bytes: int) -> None:
    """The dot, and names at the levels of the peak, the lines and the capacity."""
    x, y = data.peak, peak_bytes / GIB
    [dot] = axes.plot([x], [y], "o", color=INK, markersize=4.5, zorder=5, clip_on=False)
    chart.mark(dot, f"peak, {data.peak_name}", gib(peak_bytes), bytes=peak_bytes)
    below, above = -0.75, 0.75
    whose = "estimated peak" if data.measured else "peak"
    texts = [(y, below, f"{whose} {gib(peak_bytes)}", INK)]
    texts += [
        (line.peak_bytes / GIB, above, f"{line.label} {gib(line.peak_bytes)}", INK)
        for line in data.lines
    ]
    texts += [
        (line.peak_bytes / GIB, above, f"{line.label} peak {gib(line.peak_bytes)}", INK)
        for line in data.measured
    ]
    if data.capacity_bytes / GIB < axes.get_ylim()[1]:
        texts.append(
            (data.capacity_bytes / GIB, above, f"capacity {gib(data.capacity_bytes)}", ALARM)
        )
    place_levels(frame, axes, texts, x / axes.get_xlim()[1])


def place_levels(
    frame: Frame, axes: Axes, texts: Sequence[tuple[float, float, str, str]], peak_share: float
) -> None:
    """Names of levels, each just above or below its level, on the emptier side of the peak and not
    over one another."""
    height = SMALL_POINTS * 1.35 / 72
    inches = frame.body.height / axes.get_ylim()[1]
    ordered = sorted(texts, key=lambda text: text[0] * inches + height * text[1])
    places = spread(
        [level * inches + height * side for level, side, _, _ in ordered],
        [height] * len(ordered),
        0,
        frame.body.height + 0.02,
        0.0,
    )
    on_left = peak_share > 0.5
    x = frame.body.left + (0.06 if on_left else frame.width - 0.06)
    for (_, _, text, colour), place in zip(ordered, places, strict=True):
        text = shortened(text, frame.width * 0.6)
        frame.text(
            x,
            frame.bottom + place,
            text,
            va="center",
            ha="left" if on_left else "right",
            fontsize=SMALL_POINTS,
            color=colour,
            fontweight="bold",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )


def draw_band_names(frame: Frame, axes: Axes, data: Timeline) -> None:
    """At the right end, in the colour's square: what each band holds at the peak."""
    middles, reached = [], 0.0
    inches = frame.body.height / axes.get_ylim()[1]
    for name in BANDS:
        nbytes = float(data.category_bytes[name][data.peak]) / GIB
        middles.append((reached + nbytes / 2) * inches)
        reached += nbytes
    height = TEXT_POINTS * 1.3 / 72
    places = spread(middles, [height] * len(BANDS), 0, frame.body.height, 0.02)
    x = WIDTH_INCHES - frame.body.right + 0.08
    frame.text(
        x,
        frame.bottom + frame.body.height + 0.04,
        "at the peak",
        va="bottom",
        color=MUTED,
        fontsize=SMALL_POINTS,
    )
    for name, place in zip(BANDS, places, strict=True):
        frame.text(
            x,
            frame.bottom + place,
            "■",
            color=COLOURS[name],
            va="center",
            ha="left",
            fontsize=SMALL_POINTS,
        )
        frame.text(
            x + 0.11,
            frame.bottom + place,
            band_text(data, name),
            va="center",
            ha="left",
            fontsize=SMALL_POINTS,
        )


def add_slices(chart: Chart, axes: Axes, data: Timeline) -> None:
    """Invisible columns that say the level at their highest moment."""
    total = data.total_bytes
    for start, end in pairwise(columns_of(total, SLICES)):
        at = int(start) + int(np.argmax(total[start:end]))
        phase = [name for begin, name in data.phases if begin <= at][-1] if data.phases else ""
        values = {f"{name}_bytes": int(data.category_bytes[name][at]) for name in BANDS}
        patch = axes.axvspan(float(start), float(end), facecolor="none", edgecolor="none", zorder=6)
        parts = ", ".join(band + " " + gib(values[f"{band}_bytes"]) for band in BANDS)
        chart.mark(
            patch,
            f"{phase}, event {at:,} of {len(total):,}",
            f"{gib(int(total[at]))} ({parts})",
            silent=True,
            bytes=int(total[at]),
            **values,
        )
