"""Memory by category against the GPU's capacity: one bar per run, ZeRO stage or pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from gpuledger.units import GIB, gib

from .chart import Chart
from .layout import Body, Frame, Heading, shortened, spread, text_width, wrapped
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
    text_on,
)

CATEGORIES = ("parameters", "optimizer", "gradients", "activations", "buffers", "cached")
BAR, PITCH, DENSE_PITCH = 0.62, 0.40, 0.30  # share of a row; inches of a row, of many rows
LABEL_WIDTH, SWATCH, GAP = 1.75, 0.09, 0.14  # inches


@dataclass(frozen=True)
class Bar:
    """Bytes of one GPU at its peak. total: what is compared with the capacity.

    cached: what the allocator holds beyond allocated, 0 where that is not known.
    """

    label: str
    category_bytes: dict[str, int]
    cached_bytes: int
    total_bytes: int
    capacity_bytes: int
    fits: bool

    def parts(self) -> dict[str, int]:
        """Bytes by category in the order of the bar, and cached last."""
        return {
            name: self.cached_bytes if name == "cached" else self.category_bytes[name]
            for name in CATEGORIES
        }


@styled
def breakdown(bars: Sequence[Bar], gpu: str, footer: str, name: str = "breakdown") -> Chart:
    """Stacked horizontal bars in the order given, the first on top. gpu: whose capacity it is."""
    heading = Heading(title_of(bars), "Memory of one GPU at its peak, GiB", footer)
    left = min(LABEL_WIDTH, max(text_width(bar.label) for bar in bars) + 0.1) + 0.12
    height = (PITCH if len(bars) <= 8 else DENSE_PITCH) * max(len(bars), 2)
    right = max(text_width(end_text(bar), bold=True) for bar in bars) + 0.25
    frame = Frame(heading, Body(height, left=left, right=0.2, below=0.42, above=0.32))
    axes = frame.axes()
    longest = max(max(bar.total_bytes, bar.capacity_bytes) for bar in bars) / GIB
    axes.set_xlim(0, longest * frame.width / (frame.width - right))
    axes.set_ylim(len(bars) - 0.5, -0.5)
    chart = Chart(name, heading.title, description_of(bars), frame.figure)
    inches = frame.width / axes.get_xlim()[1]
    for row, bar in enumerate(bars):
        draw_bar(chart, axes, row, bar, inches)
    draw_capacity(frame, axes, bars, gpu)
    draw_key(frame, bars, inches)
    axes.set_yticks(range(len(bars)))
    axes.set_yticklabels(
        [
            "\n".join(wrapped(bar.label, left - 0.15, TEXT_POINTS, most=2 if len(bars) <= 8 else 1))
            for bar in bars
        ]
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return chart


def title_of(bars: Sequence[Bar]) -> str:
    """Which bars fit, in words."""
    fitting = [bar for bar in bars if bar.fits]
    if len(bars) == 1:
        bar = bars[0]
        left = bar.capacity_bytes - bar.total_bytes
        return (
            f"{bar.label} fits, with {gib(left)} to spare"
            if bar.fits
            else f"{bar.label} does not fit: {gib(-left)} too much"
        )
    if not fitting:
        closest = min(bars, key=lambda bar: bar.total_bytes - bar.capacity_bytes)
        return (
            f"None of {len(bars)} fits; {closest.label} is closest, "
            f"{gib(closest.total_bytes - closest.capacity_bytes)} over"
        )
    if len(fitting) == len(bars):
        fullest = max(bars, key=lambda bar: bar.total_bytes / bar.capacity_bytes)
        share = 100 * fullest.total_bytes / fullest.capacity_bytes
        return f"All {len(bars)} fit; {fullest.label} is fullest, at {share:.0f} % of its GPU"
    if len(fitting) == 1:
        return f"Only {fitting[0].label} fits, at {gib(fitting[0].total_bytes)}"
    smallest = min(fitting, key=lambda bar: bar.total_bytes)
    least = gib(smallest.total_bytes)
    return f"{len(fitting)} of {len(bars)} fit; {smallest.label} needs least, {least}"


def description_of(bars: Sequence[Bar]) -> str:
    """Totals and verdicts, for those who cannot see the bars."""
    return "Bars of memory by category. " + "; ".join(
        f"{bar.label}: {gib(bar.total_bytes)} of {gib(bar.capacity_bytes)}, "
        f"{'fits' if bar.fits else 'does not fit'}"
        for bar in bars
    )


def end_text(bar: Bar) -> str:
    """What stands at the end of a bar."""
    over = bar.total_bytes - bar.capacity_bytes
    return gib(bar.total_bytes) + (
        "" if bar.fits else f"  over by {gib(over)}" if over > 0 else "  out of memory"
    )


def draw_bar(chart: Chart, axes: Axes, row: int, bar: Bar, inches: float) -> None:
    """Segments with their values where there is room, what is over hatched, and the total."""
    reached = 0
    for name, nbytes in bar.parts().items():
        start = reached
        patch = Rectangle(
            (start / GIB, row - BAR / 2),
            nbytes / GIB,
            BAR,
            facecolor=COLOURS[name],
            edgecolor=PAPER,
            linewidth=0.8,
        )
        axes.add_artist(patch)
        chart.mark(patch, f"{bar.label}, {name}", gib(nbytes), bytes=nbytes)
        text = f"{nbytes / GIB:.1f}"
        end = start + nbytes
        if start < bar.capacity_bytes < end:  # beside the line, where there is more room
            middle = bar.capacity_bytes
            start, end = max((start, middle), (middle, end), key=lambda side: side[1] - side[0])
        if text_width(text, SMALL_POINTS) + 0.1 < (end - start) / GIB * inches:
            axes.text(
                (start + end) / 2 / GIB,
                row,
                text,
                ha="center",
                va="center",
                zorder=3,
                fontsize=SMALL_POINTS,
                color=text_on(COLOURS[name]),
                bbox={"facecolor": COLOURS[name], "edgecolor": "none", "pad": 1.0},
            )
        reached += nbytes
    draw_end(chart, axes, row, bar, inches)


def draw_end(chart: Chart, axes: Axes, row: int, bar: Bar, inches: float) -> None:
    """The part beyond the capacity, and the total in bold, clear of the capacity line."""
    if bar.total_bytes > bar.capacity_bytes:
        axes.add_artist(
            Rectangle(
                (bar.capacity_bytes / GIB, row - BAR / 2),
                (bar.total_bytes - bar.capacity_bytes) / GIB,
                BAR,
                facecolor="none",
                edgecolor=PAPER,
                hatch="////",
                linewidth=0,
            )
        )
    x = bar.total_bytes / GIB + 0.06 / inches
    text = axes.text(
        x, row, end_text(bar), va="center", fontweight="bold", color=INK if bar.fits else ALARM
    )
    chart.mark(
        text,
        f"{bar.label}, total",
        gib(bar.total_bytes),
        bytes=bar.total_bytes,
        capacity_bytes=bar.capacity_bytes,
    )
    capacity = bar.capacity_bytes / GIB
    if x < capacity < x + text_width(end_text(bar), bold=True) / inches:
        text.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 1.0})


def draw_capacity(frame: Frame, axes: Axes, bars: Sequence[Bar], gpu: str) -> None:
    """One line where all bars have the same capacity, otherwise a piece at each bar; and its name
    under the axis, with the unit at the axis' other end."""
    inches = frame.width / axes.get_xlim()[1]
    for row, bar in enumerate(bars):
        axes.plot(
            [bar.capacity_bytes / GIB] * 2,
            [row - 0.5, row + 0.5],
            color=ALARM,
            linewidth=1.2,
            zorder=1.9,
        )
    same = len({bar.capacity_bytes for bar in bars}) == 1
    text = (
        f"capacity of {gpu}: {gib(bars[0].capacity_bytes)}"
        if same
        else "red: capacity of each run's GPU"
    )
    text = shortened(text, frame.width - 0.6)
    half = text_width(text, SMALL_POINTS) / 2
    x = max(bar.capacity_bytes for bar in bars) / GIB * inches
    x = min(max(x, half), frame.width - half)
    on_left = x - half > 0.5
    y = frame.bottom - 0.24
    frame.text(
        frame.body.left + x, y, text, ha="center", va="top", fontsize=SMALL_POINTS, color=ALARM
    )
    frame.text(
        frame.body.left + (0 if on_left else frame.width),
        y,
        "GiB",
        va="top",
        ha="left" if on_left else "right",
        fontsize=SMALL_POINTS,
        color=MUTED,
    )


def draw_key(frame: Frame, bars: Sequence[Bar], inches: float) -> None:
    """Names of the categories above the first bar, each near its segment there."""
    used = [name for name in CATEGORIES if any(bar.parts()[name] for bar in bars)]
    widths = [SWATCH + 0.04 + text_width(name) for name in used]
    centres, start = [], 0
    for name, nbytes in bars[0].parts().items():
        if name in used:
            centres.append((start + nbytes / 2) / GIB * inches)
        start += nbytes
    places = spread(centres, widths, 0.0, frame.width, GAP)
    y = frame.bottom + frame.body.height + 0.09
    for name, place, width in zip(used, places, widths, strict=True):
        x = frame.body.left + place - width / 2
        frame.figure.patches.append(
            Rectangle(
                (x / WIDTH_INCHES, y / frame.height),
                SWATCH / WIDTH_INCHES,
                SWATCH / frame.height,
                transform=frame.figure.transFigure,
                facecolor=COLOURS[name],
                edgecolor=MUTED,
                linewidth=0.4,
            )
        )
        frame.text(x + SWATCH + 0.04, y - 0.01, name, va="bottom", fontsize=TEXT_POINTS)
