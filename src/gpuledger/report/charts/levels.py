"""Lines over a timeline: what the allocator holds, and the live bytes as they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from gpuledger.units import GIB, gib

from .chart import Chart
from .style import INK

STYLES = ("-", "--", ":", "-.")
DASHES: dict[str, tuple[float, tuple[float, ...]]] = {
    "dashed": (0, (4, 2.5)),
    "dotted": (0, (1, 1.5)),
    "dash-dotted": (0, (6, 2, 1, 2)),
}


@dataclass(frozen=True)
class Line:
    """A level: bytes at positions from 0 (start of what is drawn) to 1 (end); what it comes from."""

    label: str
    positions: Sequence[float]
    level_bytes: Sequence[int]
    source: str = ""

    @property
    def peak_bytes(self) -> int:
        return max(self.level_bytes)


def verdict(line: Line, estimated_bytes: int) -> str:
    """How far a measured peak is from the estimated one: `emulated: equal to the byte`."""
    difference = line.peak_bytes - estimated_bytes
    words = f"{abs(difference):,} bytes {'more' if difference > 0 else 'less'}"
    return f"{line.label}: {words if difference else 'equal to the byte'}"


def dashes_of(lines: Sequence[Line]) -> list[str]:
    """Which line is which: `dashed: emulated, PyTorch 2.14.1`."""
    return [
        f"{dash}: {line.label}{', ' * bool(line.source)}{line.source}"
        for dash, line in zip(cycle(DASHES), lines, strict=False)
    ]


def draw_lines(chart: Chart, axes: Axes, lines: Sequence[Line]) -> None:
    """Levels as they are."""
    right = axes.get_xlim()[1]
    for number, line in enumerate(lines):
        positions, levels = corners(line)
        [drawn] = axes.plot(
            positions * right,
            levels / GIB,
            color=INK,
            linewidth=1.0,
            linestyle=STYLES[number % len(STYLES)],
        )
        chart.mark(drawn, line.label, gib(line.peak_bytes), bytes=line.peak_bytes)


def corners(line: Line) -> tuple[Any, Any]:
    """The points of a line where its level changes, and its ends."""
    levels = np.asarray(line.level_bytes)
    change = np.flatnonzero(np.diff(levels))
    kept = np.unique([0, *change, *(change + 1), len(levels) - 1])
    return np.asarray(line.positions)[kept], levels[kept]


def draw_measured(chart: Chart, axes: Axes, lines: Sequence[Line], edges: Any) -> None:
    """The highest measured level of each column, as the areas below show their own."""
    right = axes.get_xlim()[1]
    for number, line in enumerate(lines):
        positions, levels = highest(np.asarray(line.positions) * right, line.level_bytes, edges)
        [drawn] = axes.plot(
            positions,
            levels / GIB,
            color=INK,
            linewidth=1.0,
            linestyle=list(DASHES.values())[number % len(DASHES)],
            drawstyle="steps-mid",
        )
        chart.mark(drawn, f"{line.label} peak", gib(line.peak_bytes), bytes=line.peak_bytes)


def highest(positions: Any, level_bytes: Sequence[int], edges: Any) -> tuple[Any, Any]:
    """Of each column that holds a point, the highest one; and the ends."""
    levels = np.asarray(level_bytes)
    places = np.searchsorted(positions, edges)
    kept = {0, len(levels) - 1}
    kept |= {int(a + np.argmax(levels[a:b])) for a, b in pairwise(places) if a < b}
    chosen = np.array(sorted(kept))
    return positions[chosen], levels[chosen]
