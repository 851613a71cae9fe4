"""Names beside dots: each at the free place nearest to its dot, or left out where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from matplotlib.axes import Axes

from .layout import text_width
from .style import INK, SMALL_POINTS

HEIGHT = SMALL_POINTS * 1.25 / 72
REACH = 0.07  # inches between a dot and its name
DOT = 0.05  # half the room that a dot takes
RING = 0.085  # half the room of a ring around a dot
THIN = 0.015  # half the room that a line takes
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


@dataclass(frozen=True)
class Label:
    """A name for the dot at x, y in the units of the axes; bold for one with a ring around it."""

    x: float
    y: float
    text: str
    ring: bool = False


def name_dots(
    axes: Axes,
    labels: Sequence[Label],
    others: Sequence[tuple[float, float]] = (),
    taken: Sequence[Box] = (),
    lines: Sequence[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> list[str]:
    """Write names without overlaps, the first ones first.

    others: dots without a name. taken: where no name may be. lines: from dot to dot.
    Returns the names that found no place.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    area = axes.get_window_extent()
    room = Box(0, 0, area.width / figure.dpi, area.height / figure.dpi)

    def inches(x: float, y: float) -> tuple[float, float]:
        at = axes.transData.transform((x, y))
        return (at[0] - area.x0) / figure.dpi, (at[1] - area.y0) / figure.dpi

    occupied = [*taken, *(square(inches(*dot), DOT) for dot in others)]
    occupied += [square(inches(label.x, label.y), RING if label.ring else DOT) for label in labels]
    for start, end in lines:
        occupied += along(inches(*start), inches(*end))
    left_out = []
    for label in labels:
        width = text_width(label.text, SMALL_POINTS, bold=label.ring) + 0.03
        reach = REACH + RING - DOT if label.ring else REACH
        box = free_place(inches(label.x, label.y), (width, reach), [room, *occupied])
        if box is None:
            left_out.append(label.text)
        else:
            occupied.append(box)
            write(axes, label, (box.x0 + box.x1) / 2 / room.x1, (box.y0 + box.y1) / 2 / room.y1)
    return left_out


def write(axes: Axes, label: Label, x: float, y: float) -> None:
    """The name around a point, in shares of the axes."""
    axes.text(
        x,
        y,
        label.text,
        ha="center",
        va="center",
        transform=axes.transAxes,
        fontsize=SMALL_POINTS,
        fontweight="bold" if label.ring else "normal",
        color=INK,
        zorder=6,
    )


def along(start: tuple[float, float], end: tuple[float, float]) -> list[Box]:
    """Small boxes on a line, in inches, which names must not cover."""
    (x0, y0), (x1, y1) = start, end
    steps = max(2, int(hypot(x1 - x0, y1 - y0) / (2 * THIN)))
    points = [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(1, steps)]
    return [Box(x - THIN, y - THIN, x + THIN, y + THIN) for x, y in points]


def square(middle: tuple[float, float], half: float) -> Box:
    return Box(middle[0] - half, middle[1] - half, middle[0] + half, middle[1] + half)


def free_place(
    dot: tuple[float, float], size: tuple[float, float], boxes: Sequence[Box]
) -> Box | None:
    """The first of SIDES where a name is inside the axes and over nothing.

    size: its width, and how far from the dot it begins. boxes: the axes, then what is occupied.
    """
    width, reach = size
    room, *occupied = boxes
    for side, level in SIDES:
        centre = dot[0] + side * (reach + width / 2)
        middle = dot[1] + level * (HEIGHT / 2 + reach * 0.8)
        box = Box(centre - width / 2, middle - HEIGHT / 2, centre + width / 2, middle + HEIGHT / 2)
        inside = box.x0 >= room.x0 and box.x1 <= room.x1 and box.y0 >= room.y0 and box.y1 <= room.y1
        if inside and not any(box.meets(other) for other in occupied):
            return box
    return None
