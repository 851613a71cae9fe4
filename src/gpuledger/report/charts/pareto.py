"""Plans by step time and peak memory: those that no plan beats in both are joined and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes

from gpuledger.units import GIB, gib

from .chart import Chart
from .labels import Box, name_dots
from .layout import Body, Frame, Heading, text_width
from .style import ALARM, COLOURS, INK, SMALL_POINTS, styled


@dataclass(frozen=True)
class Plan:
    """A layout such as `tp2 pp4 dp8`: seconds of a step and bytes of the fullest GPU."""

    label: str
    step_seconds: float
    peak_bytes: int
    fits: bool


def frontier(plans: Sequence[Plan]) -> list[Plan]:
    """Fitting plans that no other fitting plan equals or beats in both, fastest first."""
    best: list[Plan] = []
    for plan in sorted((p for p in plans if p.fits), key=lambda p: (p.step_seconds, p.peak_bytes)):
        if not best or plan.peak_bytes < best[-1].peak_bytes:
            best.append(plan)
    return best


@styled
def pareto(
    label: str, plans: Sequence[Plan], capacity_bytes: int, footer: str, name: str = "pareto",
    fitting: int | None = None,
) -> Chart:
    """Every plan a dot; plans that do not fit are crosses. fitting: how many do, where not all of
    them are drawn."""
    best = frontier(plans)
    fitting = sum(plan.fits for plan in plans) if fitting is None else fitting
    title = (
        f"{label}: {best[0].label} is fastest of {fitting} plans that fit, "
        f"{best[0].step_seconds:.3g} s a step at {gib(best[0].peak_bytes)}"
        if best
        else f"{label}: none of {len(plans)} plans fits in {gib(capacity_bytes)}"
    )
    frame = Frame(
        Heading(
            title,
            "Time of one step, s, and peak memory of the fullest GPU, GiB; lower "
            "left is better; crosses do not fit",
            footer,
        ),
        Body(3.0, left=0.6, right=0.2, below=0.45),
    )
    axes = frame.axes()
    slowest = max(plan.step_seconds for plan in plans)
    shown = max([capacity_bytes, *(p.peak_bytes for p in plans if p.fits)]) * 1.35 / GIB
    axes.set(xlim=(0, slowest * 1.12), ylim=(0, shown), xlabel="s per step", ylabel="GiB per GPU")
    chart = Chart(name, title, title, frame.figure)
    for plan in plans:
        draw_plan(chart, axes, plan, plan in best, shown)
    axes.plot(
        [p.step_seconds for p in best],
        [p.peak_bytes / GIB for p in best],
        color=INK,
        linewidth=1.0,
        zorder=2,
    )
    taken = draw_capacity(frame, axes, plans, capacity_bytes)
    points = [(p.step_seconds, p.peak_bytes / GIB) for p in best]
    others = [(p.step_seconds, p.peak_bytes / GIB) for p in plans if p not in best]
    others += [between for pair in pairwise(points) for between in along(*pair)]
    name_dots(axes, [(p.step_seconds, p.peak_bytes / GIB, p.label) for p in best], others, taken)
    return chart


def draw_capacity(
    frame: Frame, axes: Axes, plans: Sequence[Plan], capacity_bytes: int
) -> list[Box]:
    """The line and its name, at the end where no plan is; returns the room that they take."""
    text = f"capacity {gib(capacity_bytes)}"
    width = text_width(text, SMALL_POINTS) + 0.1
    height, (right, top) = capacity_bytes / GIB, (axes.get_xlim()[1], axes.get_ylim()[1])
    crowded = any(
        plan.step_seconds > right * (1 - width / frame.width)
        and -0.02 < plan.peak_bytes / GIB / top - height / top < 0.09
        for plan in plans
    )
    axes.axhline(height, color=ALARM, linewidth=1.0)
    axes.text(
        0.005 if crowded else 0.995,
        height + 0.008 * top,
        text,
        transform=axes.get_yaxis_transform(),
        ha="left" if crowded else "right",
        va="bottom",
        fontsize=SMALL_POINTS,
        color=ALARM,
    )
    line = height / top * frame.body.height
    start = 0.0 if crowded else frame.width - width
    return [
        Box(start, line, start + width, line + 0.18),
        Box(0, line - 0.01, frame.width, line + 0.01),
    ]


def along(
    start: tuple[float, float], end: tuple[float, float], steps: int = 40
) -> list[tuple[float, float]]:
    """Points on a line, which names must not cover."""
    (x0, y0), (x1, y1) = start, end
    return [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(1, steps)]


def draw_plan(chart: Chart, axes: Axes, plan: Plan, best: bool, shown: float) -> None:
    """A dot, or a cross at the top where the plan does not fit and lies outside."""
    y = min(plan.peak_bytes / GIB, shown * 0.985)
    marker, colour = (
        ("o", COLOURS["parameters"] if best else COLOURS["cached"]) if plan.fits else ("x", ALARM)
    )
    [dot] = axes.plot(
        [plan.step_seconds],
        [y],
        marker,
        color=colour,
        markersize=5.5 if best else 4,
        zorder=3 if best else 1,
    )
    chart.mark(
        dot,
        plan.label,
        f"{plan.step_seconds:.3g} s a step, {gib(plan.peak_bytes)}",
        bytes=plan.peak_bytes,
        seconds=plan.step_seconds,
    )
