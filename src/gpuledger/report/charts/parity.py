"""Estimates against measurements: on the diagonal if equal, and beside it the signed error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from gpuledger.units import GIB, gib

from .chart import Chart
from .layout import Body, Frame, Heading, shortened, text_width
from .style import COLOURS, INK, MUTED, PAPER, SMALL_POINTS, styled

ROW = 0.17  # inches
MOST_ROWS = 40


@dataclass(frozen=True)
class Pair:
    """One quantity of one run: bytes estimated and bytes measured (above 0)."""

    label: str
    estimated_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """(estimate - measurement) / measurement."""
        return (self.estimated_bytes - self.measured_bytes) / self.measured_bytes


@styled
def parity(pairs: Sequence[Pair], footer: str, name: str = "parity") -> Chart:
    """Left: log-log, equal axes. Right: signed error in per cent, largest overestimate on top."""
    used = sorted(pairs, key=lambda pair: (pair.error, pair.label))
    title = title_of(used)
    shown = used if len(used) <= MOST_ROWS else extremes(used)
    subtitle = (
        "Estimated against measured bytes, GiB; and the signed error of each, % of the measured"
    )
    if len(shown) < len(used):
        subtitle += f" (the {len(shown)} largest of {len(used)})"
    height = max(2.6, ROW * len(shown) + 0.1)
    frame = Frame(Heading(title, subtitle, footer), Body(height, left=0.6, right=0.2, below=0.45))
    chart = Chart(name, title, title, frame.figure)
    draw_diagonal(chart, frame.axes(0.0, 2.55 / frame.width), used)
    names = min(2.0, max(text_width(pair.label, SMALL_POINTS) for pair in shown)) + 0.15
    start = (2.55 + names) / frame.width
    draw_errors(chart, frame.axes(start, 1 - start), shown, names)
    return chart


def title_of(pairs: Sequence[Pair]) -> str:
    """n, bias, mean absolute and largest error."""
    errors = [100 * pair.error for pair in pairs]
    exact = sum(pair.estimated_bytes == pair.measured_bytes for pair in pairs)
    if exact == len(pairs):
        return f"All {exact} estimates equal the measurement to the byte"
    mean = sum(abs(error) for error in errors) / len(errors)
    worst = max(pairs, key=lambda pair: abs(pair.error))
    return (
        f"{len(pairs)} estimates, {exact} exact to the byte: {mean:.2f} % mean error, "
        f"{sum(errors) / len(errors):+.2f} % bias, {100 * worst.error:+.2f} % at worst "
        f"({worst.label})"
    )


def extremes(pairs: Sequence[Pair]) -> list[Pair]:
    """The MOST_ROWS largest errors, still in order."""
    largest = sorted(pairs, key=lambda pair: -abs(pair.error))[:MOST_ROWS]
    return [pair for pair in pairs if pair in largest]


def draw_diagonal(chart: Chart, axes: Axes, pairs: Sequence[Pair]) -> None:
    values = [
        max(value, 1) / GIB
        for pair in pairs
        for value in (pair.estimated_bytes, pair.measured_bytes)
    ]
    low, high = min(values) / 1.6, max(values) * 1.6
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(low, high),
        xlabel="measured, GiB",
        ylabel="estimated, GiB",
    )
    axes.minorticks_off()
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.7, zorder=0)
    for pair in pairs:
        [dot] = axes.plot(
            [pair.measured_bytes / GIB],
            [pair.estimated_bytes / GIB],
            "o",
            markersize=4,
            color=COLOURS["parameters"],
            markeredgecolor=PAPER,
            markeredgewidth=0.4,
        )
        chart.mark(
            dot,
            pair.label,
            f"estimated {gib(pair.estimated_bytes)}, measured {gib(pair.measured_bytes)}",
            estimated_bytes=pair.estimated_bytes,
            measured_bytes=pair.measured_bytes,
        )


def draw_errors(chart: Chart, axes: Axes, pairs: Sequence[Pair], names: float) -> None:
    """Bars from 0 to the left (too little) or right (too much), the number at the end of each."""
    errors = [100 * pair.error for pair in pairs]
    figure = axes.get_figure(root=True)
    assert figure is not None
    width = axes.get_window_extent().width / figure.dpi
    texts = [
        "0" if pair.estimated_bytes == pair.measured_bytes else f"{error:+.2f}"
        for pair, error in zip(pairs, errors, strict=True)
    ]
    room = max(text_width(text, SMALL_POINTS) for text in texts) + 0.08
    reach = max(max(abs(error) for error in errors), 0.01) * width / max(width - 2 * room, 0.3)
    axes.set(xlim=(-reach, reach), ylim=(-0.6, len(pairs) - 0.4), xlabel="error, %")
    axes.axvline(0, color=INK, linewidth=0.7)
    for row, (pair, error, text) in enumerate(zip(pairs, errors, texts, strict=True)):
        [bar] = axes.barh(
            [row], [error], height=0.6, color=COLOURS["activations" if error < 0 else "parameters"]
        )
        chart.mark(
            bar,
            f"error of {pair.label}",
            f"{error:+.3f} %",
            bytes=pair.estimated_bytes - pair.measured_bytes,
        )
        axes.text(
            error + (0.03 if error >= 0 else -0.03) * 2 * reach / width,
            row,
            text,
            va="center",
            ha="left" if error >= 0 else "right",
            fontsize=SMALL_POINTS,
        )
    labels = [shortened(pair.label, names - 0.12) for pair in pairs]
    axes.set_yticks(range(len(pairs)), labels, fontsize=SMALL_POINTS)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
