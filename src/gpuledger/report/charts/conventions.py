"""One run under every FLOPs convention: MFU where a throughput is known, FLOPs otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.units import scaled

from .chart import Chart
from .layout import Body, Frame, Heading, text_width
from .style import COLOURS, INK, MUTED, PAPER, SMALL_POINTS, styled

ROW = 0.19  # inches


@dataclass(frozen=True)
class Conventions:
    """FLOPs of one step by convention. reference: what the others are compared with.

    mfu: fractions of the dense peak, empty where no throughput is known.
    """

    label: str
    flops_per_step: Mapping[str, int]
    mfu: Mapping[str, float]
    reference: str = "exact"


@styled
def conventions(data: Conventions, footer: str, name: str = "conventions") -> Chart:
    """One dot per convention, sorted by what it counts."""
    by_mfu = bool(data.mfu)
    values = dict(data.mfu) if by_mfu else dict(data.flops_per_step)
    names = sorted(values, key=lambda key: (values[key], key))
    heading = Heading(
        title_of(data),
        "Model FLOPs utilisation at the forecast step time, by convention"
        if by_mfu
        else "Model FLOPs of one step of the same run, by convention",
        footer,
    )
    left = max(text_width(key) for key in names) + 0.25
    frame = Frame(heading, Body(ROW * len(names) + 0.1, left=left, right=0.25, below=0.42))
    axes = frame.axes()
    chart = Chart(name, heading.title, heading.title, frame.figure)
    scale, unit = (0.01, "MFU, % of the dense peak") if by_mfu else unit_of(max(values.values()))
    highest = max(values.values()) / scale
    texts = {key: text_of(data, key, by_mfu) for key in names}
    room = max(text_width(text, SMALL_POINTS) for text in texts.values()) + 0.2
    axes.set(xlim=(0, highest * frame.width / (frame.width - room)), ylim=(-0.6, len(names) - 0.4))
    axes.axvline(values[data.reference] / scale, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)))
    for row, key in enumerate(names):
        axes.plot(
            [0, values[key] / scale], [row, row], color=COLOURS["cached"], linewidth=0.8, zorder=1
        )
        [dot] = axes.plot(
            [values[key] / scale],
            [row],
            "o",
            markersize=5,
            color=COLOURS["activations" if key == data.reference else "parameters"],
        )
        chart.mark(dot, key, texts[key], flops=data.flops_per_step[key])
        x = values[key] / scale + highest * 0.015
        axes.text(
            x,
            row,
            texts[key],
            va="center",
            fontsize=SMALL_POINTS,
            color=INK,
            fontweight="bold" if key == data.reference else "normal",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
        )
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(unit)
    return chart


def title_of(data: Conventions) -> str:
    """How far the field disagrees about this run."""
    counts = data.flops_per_step
    low, high = min(counts, key=lambda k: counts[k]), max(counts, key=lambda k: counts[k])
    factor = counts[high] / counts[low]
    return f"{data.label}: {high} counts {factor:.2f} × the FLOPs of {low}"


def text_of(data: Conventions, key: str, by_mfu: bool) -> str:
    """Value, and ratio to the reference."""
    ratio = data.flops_per_step[key] / data.flops_per_step[data.reference]
    value = f"{100 * data.mfu[key]:.1f} %" if by_mfu else scaled(data.flops_per_step[key], "FLOP")
    return f"{value} ({ratio:.2f} ×)"


def unit_of(value: float) -> tuple[float, str]:
    """The power of a thousand for an axis, and its name."""
    for factor, prefix in (
        (1e21, "Z"),
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
    ):
        if value >= factor:
            return factor, f"{prefix}FLOP"
    return 1.0, "FLOP"
