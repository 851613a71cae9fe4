"""Where things go, in inches: a title on top, the axes, a footer; and text that never overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import FT2Font, LoadFlags
from matplotlib.patches import Rectangle

from .style import (
    DOTS_PER_INCH,
    FOOTER_POINTS,
    INK,
    MUTED,
    SMALL_POINTS,
    TEXT_POINTS,
    TITLE_POINTS,
    WIDTH_INCHES,
)

MARGIN = 0.12  # inches of paper around everything
LINE = 1.3  # height of a line of text in units of its size
SWATCH = 0.09  # side of a colour square in a key
POINTS_PER_INCH, SUBPIXELS = 72, 64


@dataclass(frozen=True)
class Heading:
    """Title (the finding), a line that says what is drawn, and the configuration at the foot."""

    title: str
    subtitle: str
    footer: str


@dataclass(frozen=True)
class Body:
    """Inches of the drawing itself, and of the room around it for labels."""

    height: float
    left: float = 0.6
    right: float = 0.2
    below: float = 0.45
    above: float = 0.12


class Frame:
    """A figure with its heading and footer drawn, and one pair of axes in what is left."""

    def __init__(self, heading: Heading, body: Body):
        room = WIDTH_INCHES - 2 * MARGIN
        title = wrapped(heading.title, room, TITLE_POINTS, bold=True)
        subtitle = wrapped(heading.subtitle, room, TEXT_POINTS)
        footer = wrapped(heading.footer, room, FOOTER_POINTS)
        top = _height(title, TITLE_POINTS) + _height(subtitle, TEXT_POINTS) + MARGIN
        foot = _height(footer, FOOTER_POINTS) + 1.5 * MARGIN
        self.body = body
        self.bottom = foot + body.below
        self.height = top + body.above + body.height + self.bottom
        self.figure = Figure(figsize=(WIDTH_INCHES, self.height), dpi=DOTS_PER_INCH)
        self._lines(title, self.height - MARGIN, TITLE_POINTS, INK, bold=True)
        self._lines(
            subtitle, self.height - MARGIN - _height(title, TITLE_POINTS), TEXT_POINTS, MUTED
        )
        self._lines(footer, foot - 0.5 * MARGIN, FOOTER_POINTS, MUTED)

    def _lines(
        self, lines: Sequence[str], top: float, points: float, colour: str, *, bold: bool = False
    ) -> None:
        for i, line in enumerate(lines):
            self.text(
                MARGIN,
                top - i * points * LINE / POINTS_PER_INCH,
                line,
                fontsize=points,
                color=colour,
                va="top",
                fontweight="bold" if bold else "normal",
            )

    def text(self, x: float, y: float, text: str, **how: object) -> None:
        """Text at inches from the lower left corner of the figure."""
        self.figure.text(x / WIDTH_INCHES, y / self.height, text, **how)  # type: ignore[arg-type]

    def swatch(self, x: float, y: float, colour: str, hatch: str | None = None) -> None:
        """A small square of a colour in a key, its lower left corner at these inches."""
        self.figure.patches.append(
            Rectangle(
                (x / WIDTH_INCHES, y / self.height),
                SWATCH / WIDTH_INCHES,
                SWATCH / self.height,
                transform=self.figure.transFigure,
                facecolor=colour,
                edgecolor=MUTED,
                linewidth=0.4,
                hatch=hatch,
            )
        )

    @property
    def width(self) -> float:
        """Inches of the drawing."""
        return WIDTH_INCHES - self.body.left - self.body.right

    def axes(self, start: float = 0.0, share: float = 1.0) -> Axes:
        """Axes over a part of the drawing's width: from `start`, `share` of it."""
        return self.figure.add_axes(
            (
                (self.body.left + start * self.width) / WIDTH_INCHES,
                self.bottom / self.height,
                share * self.width / WIDTH_INCHES,
                self.body.height / self.height,
            )
        )


def _height(lines: Sequence[str], points: float) -> float:
    return len(lines) * points * LINE / POINTS_PER_INCH


@lru_cache(maxsize=4096)
def text_width(text: str, points: float = TEXT_POINTS, *, bold: bool = False) -> float:
    """Inches that a line of text takes in the charts' font."""
    font = _font(bold)
    font.set_size(points, POINTS_PER_INCH)
    font.set_text(text, 0.0, flags=LoadFlags.NO_HINTING)
    return float(font.get_width_height()[0]) / SUBPIXELS / POINTS_PER_INCH


@lru_cache(maxsize=2)
def _font(bold: bool) -> FT2Font:
    weight = "bold" if bold else "normal"
    return get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))


def wrapped(
    text: str, width: float, points: float, *, bold: bool = False, most: int | None = None
) -> list[str]:
    """Lines no wider than `width` inches; a word that is wider is cut.

    The last of `most` lines is shortened where more would follow.
    """
    lines: list[str] = []
    for word in text.split():
        word = shortened(word, width, points, bold=bold)
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, points, bold=bold) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    if most is not None and len(lines) > most:
        lines[most - 1 :] = [shortened(" ".join(lines[most - 1 :]), width, points, bold=bold)]
    return lines


def shortened(text: str, width: float, points: float = SMALL_POINTS, *, bold: bool = False) -> str:
    """The text, or its beginning and end around an ellipsis, in at most `width` inches."""
    if text_width(text, points, bold=bold) <= width:
        return text
    for kept in range(len(text) - 1, 0, -1):
        head = (2 * kept + 2) // 3
        cut = f"{text[:head].rstrip()}…{text[len(text) - (kept - head) :].lstrip()}"
        if text_width(cut, points, bold=bold) <= width:
            return cut
    return "…"


def spread(
    centres: Sequence[float], widths: Sequence[float], low: float, high: float, gap: float = 0.0
) -> list[float]:
    """Centres moved as little as possible, so that intervals of these widths do not overlap.

    They keep their order and stay within low..high where there is room for all.
    """
    blocks: list[tuple[list[int], float, float]] = []  # members, start, total width
    for i, (centre, width) in enumerate(zip(centres, widths, strict=True)):
        blocks.append(([i], centre - width / 2, width))
        while len(blocks) > 1 and blocks[-2][1] + blocks[-2][2] + gap > blocks[-1][1]:
            members, _, width_after = blocks.pop()
            before, _, width_before = blocks.pop()
            joined = before + members
            total = width_before + gap + width_after
            blocks.append((joined, _best_start(joined, centres, widths, gap), total))
    placed = [0.0] * len(centres)
    for members, start, total in blocks:
        at = max(low, min(start, high - total))
        for i in members:
            placed[i] = at + widths[i] / 2
            at += widths[i] + gap
    return _pushed(placed, widths, low, high, gap)


def _best_start(
    members: Sequence[int], centres: Sequence[float], widths: Sequence[float], gap: float
) -> float:
    """Least squares: the mean of where each member would like the block to start."""
    offset, wishes = 0.0, []
    for i in members:
        wishes.append(centres[i] - widths[i] / 2 - offset)
        offset += widths[i] + gap
    return sum(wishes) / len(wishes)


def _pushed(
    placed: list[float], widths: Sequence[float], low: float, high: float, gap: float
) -> list[float]:
    """What clamping to the ends made overlap is pushed apart, from the left, then the right."""
    edge = low
    for i, width in enumerate(widths):
        placed[i] = max(placed[i], edge + width / 2)
        edge = placed[i] + width / 2 + gap
    edge = high
    for i in reversed(range(len(widths))):
        placed[i] = min(placed[i], edge - widths[i] / 2)
        edge = placed[i] - widths[i] / 2 - gap
    return placed
