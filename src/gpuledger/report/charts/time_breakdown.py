"""Where the time of a step goes: one bar per run, its parts in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.patches import Rectangle

from .chart import Chart
from .layout import Body, Frame, Heading, spread, text_width, wrapped
from .style import (
    PAPER,
    SMALL_POINTS,
    TEXT_POINTS,
    TIME_COLOURS,
    styled,
    text_on,
)

PITCH, BAR = 0.4, 0.62


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by part, in the order in which they are drawn. They add up."""

    label: str
    part_seconds: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.part_seconds.values())


@styled
def time_breakdown(steps: Sequence[StepTime], footer: str, name: str = "time") -> Chart:
    """Horizontal stacked bars in seconds; there are at most as many parts as colours."""
    named = dict.fromkeys(part for step in steps for part in step.part_seconds)
    parts = [part for part in named if any(step.part_seconds.get(part) for step in steps)]
    colours = {
        part: colour for part, colour in zip(named, TIME_COLOURS, strict=False) if part in parts
    }
    title = title_of(steps)
    left = min(1.8, max(text_width(step.label) for step in steps) + 0.1) + 0.12
    frame = Frame(
        Heading(
            title,
            "Forecast time of one optimizer step by what the GPU does, s",
            footer,
        ),
        Body(PITCH * max(len(steps), 2), left=left, right=0.2, below=0.42, above=0.32),
    )
    axes = frame.axes()
    longest = max(step.seconds for step in steps)
    ends = [f"{step.seconds:.3g} s" for step in steps]
    right = max(text_width(end, bold=True) for end in ends) + 0.2
    axes.set(xlim=(0, longest * frame.width / (frame.width - right)), ylim=(len(steps) - 0.5, -0.5))
    inches = frame.width / axes.get_xlim()[1]
    chart = Chart(
        name, title, "; ".join(f"{s.label}: {s.seconds:.3g} s" for s in steps), frame.figure
    )
    for row, (step, end) in enumerate(zip(steps, ends, strict=True)):
        start = 0.0
        for part in parts:
            seconds = step.part_seconds.get(part, 0.0)
            patch = Rectangle(
                (start, row - BAR / 2),
                seconds,
                BAR,
                facecolor=colours[part],
                edgecolor=PAPER,
                linewidth=0.8,
            )
            axes.add_artist(patch)
            text = f"{100 * seconds / step.seconds:.0f} %"
            chart.mark(patch, f"{step.label}, {part}", f"{seconds:.4g} s ({text})", seconds=seconds)
            if text_width(text, SMALL_POINTS) + 0.08 < seconds * inches:
                axes.text(
                    start + seconds / 2,
                    row,
                    text,
                    ha="center",
                    va="center",
                    fontsize=SMALL_POINTS,
                    color=text_on(colours[part]),
                )
            start += seconds
        label = axes.text(step.seconds + 0.06 / inches, row, end, va="center", fontweight="bold")
        chart.mark(label, f"{step.label}, step", end, seconds=step.seconds)
    draw_key(frame, steps[0], colours, inches)
    axes.set_yticks(
        range(len(steps)),
        ["\n".join(wrapped(s.label, left - 0.15, TEXT_POINTS, most=2)) for s in steps],
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("s")
    return chart


def title_of(steps: Sequence[StepTime]) -> str:
    """The fastest step, or the largest part of the only one."""
    if len(steps) > 1:
        best = min(steps, key=lambda step: step.seconds)
        return f"{best.label} is fastest: {best.seconds:.3g} s a step"
    step = steps[0]
    part, seconds = max(step.part_seconds.items(), key=lambda item: item[1])
    return f"{step.label}: {seconds / step.seconds:.0%} of a {step.seconds:.3g} s step is {part}"


def draw_key(frame: Frame, step: StepTime, colours: Mapping[str, str], inches: float) -> None:
    """Names above the first bar."""
    names = list(colours)
    widths = [0.13 + text_width(name) for name in names]
    centres, start = [], 0.0
    for name in names:
        seconds = step.part_seconds.get(name, 0.0)
        centres.append((start + seconds / 2) * inches)
        start += seconds
    y = frame.bottom + frame.body.height + 0.09
    for name, place, width in zip(
        names, spread(centres, widths, 0, frame.width, 0.14), widths, strict=True
    ):
        x = frame.body.left + place - width / 2
        frame.swatch(x, y, colours[name])
        frame.text(x + 0.13, y - 0.01, name, va="bottom", fontsize=TEXT_POINTS)
