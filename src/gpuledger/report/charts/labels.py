"""Names beside dots: each at the free place nearest to its dot, or left out where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from .layout import text_width
from .style import INK, SMALL_POINTS

HEIGHT = SMALL_POINTS * 1.25 / 72
REACH = 0.07  # inches between a dot and its name
DOT = 0.05  # half the room that a dot takes
SIDES = (
    (1, 0),
    (-1, 0),
    (0.5, 1),
    (-0.5, 1),
    (0.5, -1),
    (-0.5, -1),
    (1, 1),
    (-1, 1),
    (1, -1),
    (-1, -1),
    (0.5, 2),
    (-0.5, 2),
    (0.5, -2),
    (-0.5, -2),
)  # in widths and lines from the dot


@dataclass(frozen=True)
class Box:
    """Inches from the lower left corner of the axes."""

    x0: float
    y0: float
    x1: float
    y1: float

    def meets(self, other: Box) -> bool:
        return (
            self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1
        )


def name_dots(
    axes: Axes,
    dots: Sequence[tuple[float, float, str]],
    others: Sequence[tuple[float, float]] = (),
    taken: Sequence[Box] = (),
) -> list[str]:
    """Write the names of `dots` (x, y, name) without overlaps; `others` are dots without a name.

    Returns the names that found no place.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    area = axes.get_window_extent()
    room = Box(0, 0, area.width / figure.dpi, area.height / figure.dpi)

    def inches(x: float, y: float) -> tuple[float, float]:
        at = axes.transData.transform((x, y))
        return (at[0] - area.x0) / figure.dpi, (at[1] - area.y0) / figure.dpi

    occupied = list(taken)
    for x, y in [*others, *((x, y) for x, y, _ in dots)]:
        at = inches(x, y)
        occupied.append(Box(at[0] - DOT, at[1] - DOT, at[0] + DOT, at[1] + DOT))
    left_out = []
    for x, y, name in dots:
        box = free_place(inches(x, y), text_width(name, SMALL_POINTS) + 0.03, room, occupied)
        if box is None:
            left_out.append(name)
            continue
        occupied.append(box)
        axes.text(
            (box.x0 + box.x1) / 2 / room.x1,
            (box.y0 + box.y1) / 2 / room.y1,
            name,
            ha="center",
            va="center",
            transform=axes.transAxes,
            fontsize=SMALL_POINTS,
            color=INK,
            zorder=6,
        )
    return left_out


def free_place(
    dot: tuple[float, float], width: float, room: Box, occupied: Sequence[Box]
) -> Box | None:
    """The first of SIDES where a name of this width is inside the axes and over nothing."""
    for side, level in SIDES:
        centre = dot[0] + side * (REACH + width / 2)
        middle = dot[1] + level * (HEIGHT / 2 + REACH * 0.8)
        box = Box(centre - width / 2, middle - HEIGHT / 2, centre + width / 2, middle + HEIGHT / 2)
        inside = box.x0 >= room.x0 and box.x1 <= room.x1 and box.y0 >= room.y0 and box.y1 <= room.y1
        if inside and not any(box.meets(other) for other in occupied):
            return box
    return None
