"""Plans by step time and peak memory: those that no plan beats in both are joined and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gpuledger.units import GIB, gib

from .chart import Chart
from .labels import THIN, Box, Label, name_dots
from .layout import Body, Frame, Heading, spread, text_width
from .seconds import scale_seconds, seconds_text
from .style import (
    ALARM,
    COLOURS,
    DOTS_PER_INCH,
    FOOTER_POINTS,
    INK,
    MUTED,
    PAPER,
    SMALL_POINTS,
    WIDTH_INCHES,
    styled,
)

FITS, PASSED_OVER, FITS_NOT = "fits", "passed over", "does not fit"
LINE = 0.15  # inches of a line of the key
LEAST_ROOM = 1.2  # inches for names left of the dots
MOST_RANKS = 5  # numbered plans that are named
DISC_PIXELS = 10.0 / 72 * DOTS_PER_INCH  # across
Looks = dict[str, object]


@dataclass(frozen=True)
class Plan:
    """A layout such as `tp2 pp4 dp8`: seconds of a step and bytes of the fullest GPU.

    kind: FITS; PASSED_OVER: looked at closely, and refused; FITS_NOT. rank: its number among those
    that are looked at closely, or 0.
    """

    label: str
    step_seconds: float
    peak_bytes: int
    kind: str
    rank: int = 0


@dataclass(frozen=True)
class Plans:
    """What is drawn. title: the finding. subtitle: what the bytes are, and what the room is that a
    plan may take of the capacity. numbered: what the numbered plans are."""

    title: str
    subtitle: str
    plans: Sequence[Plan]
    capacity_bytes: int
    room_bytes: int
    numbered: str = "best plans"


def frontier(plans: Sequence[Plan]) -> list[Plan]:
    """Fitting plans that no other fitting plan equals or beats in both, fastest first.

    Those that were passed over count: they fit by the bytes that are drawn.
    """
    best: list[Plan] = []
    chosen = [plan for plan in plans if plan.kind != FITS_NOT]
    for plan in sorted(chosen, key=lambda p: (p.step_seconds, p.peak_bytes)):
        if not best or plan.peak_bytes < best[-1].peak_bytes:
            best.append(plan)
    return best


@styled
def pareto(data: Plans, footer: str, name: str = "pareto") -> Chart:
    """Every plan a dot; plans that do not fit are crosses."""
    best = frontier(data.plans)
    top = highest_shown(data)
    key = key_of(data, best, top)
    limits = limits_of(data)
    frame = Frame(
        Heading(data.title, data.subtitle, footer),
        Body(
            3.0, left=0.6, below=0.45, above=0.12 + LINE * len(key),
            right=max(text_width(line, SMALL_POINTS) for _, text in limits for line in text) + 0.2,
        ),
    )
    axes = frame.axes()
    axes.set(ylim=(0, top), xlabel="s per step", ylabel="GiB per GPU")
    named = [text_width(name_of(plan), SMALL_POINTS, bold=True) for plan in data.plans if plan.rank]
    room = max([LEAST_ROOM, *(width + 0.25 for width in named)]) / frame.width
    scale_seconds(axes, [plan.step_seconds for plan in data.plans], min(room, 0.45))
    chart = Chart(name, data.title, data.title, frame.figure)
    numbered = number_plans(chart, axes, data)
    for plan in data.plans:
        if not plan.rank:
            draw_plan(chart, axes, plan, plan in best, top)
    points = [(plan.step_seconds, plan.peak_bytes / GIB) for plan in best]
    if points:
        axes.plot(*zip(*points, strict=True), color=INK, linewidth=1.0, zorder=2)
    draw_limits(frame, axes, limits)
    draw_key(frame, key)
    unranked = [plan for plan in outside_in(best) if not plan.rank]
    name_plans(frame, axes, data, [*numbered[:MOST_RANKS], *unranked])
    return chart


def highest_shown(data: Plans) -> float:
    """GiB at the upper end: the capacity and what fits, or where nothing does what needs least."""
    fitting = [plan.peak_bytes for plan in data.plans if plan.kind != FITS_NOT]
    if fitting:
        return max(data.capacity_bytes, *fitting) * 1.35 / GIB
    least = min(plan.peak_bytes for plan in data.plans)
    return max(data.capacity_bytes * 1.35, least * 1.5) / GIB


def limits_of(data: Plans) -> list[tuple[float, list[str]]]:
    """The capacity and what is left of it, in GiB, each with its two lines of text."""
    return [
        (data.room_bytes / GIB, ["room", gib(data.room_bytes)]),
        (data.capacity_bytes / GIB, ["capacity", gib(data.capacity_bytes)]),
    ]


def draw_limits(frame: Frame, axes: Axes, limits: Sequence[tuple[float, list[str]]]) -> None:
    """Lines, and their names right of the axes, where no dot can be."""
    inches = frame.body.height / axes.get_ylim()[1]
    height = SMALL_POINTS * 1.3 * 2 / 72
    places = spread([level * inches for level, _ in limits], [height] * len(limits),
                    0, frame.body.height + height / 2, 0.03)
    for (level, text), place, dash in zip(limits, places, ((0, (3, 2)), "-"), strict=True):
        axes.axhline(level, color=ALARM, linewidth=0.9, linestyle=dash, zorder=0)
        frame.text(
            WIDTH_INCHES - frame.body.right + 0.08, frame.bottom + place, "\n".join(text),
            va="center", ha="left", fontsize=SMALL_POINTS, color=ALARM, linespacing=1.1,
        )


def looks_of(kind: str, best: bool) -> Looks:
    """Marker and colours of a plan."""
    if kind == FITS_NOT:
        return {"marker": "x", "color": ALARM, "markersize": 4.0}
    colour = COLOURS["parameters"] if best else COLOURS["cached"]
    face = PAPER if kind == PASSED_OVER else colour
    edge = MUTED if kind == PASSED_OVER and not best else colour
    return {"marker": "o", "color": edge, "markerfacecolor": face, "markersize": 5.5 if best else 4.0}


DISC: Looks = {
    "marker": "o", "color": INK, "markerfacecolor": PAPER, "markersize": 10.0, "markeredgewidth": 1.0,
}
ABOVE: Looks = {"marker": "^", "color": ALARM, "markersize": 4.0, "markerfacecolor": PAPER}


def draw_plan(chart: Chart, axes: Axes, plan: Plan, best: bool, top: float) -> None:
    """A dot, a cross, or a triangle at the upper end for what lies above it."""
    above = plan.peak_bytes / GIB > top
    looks = ABOVE if above else looks_of(plan.kind, best)
    [dot] = axes.plot([plan.step_seconds], [height_of(plan, top)], linestyle="none", zorder=3 if best else 1,
                      clip_on=False, **looks)  # type: ignore[arg-type]
    mark_plan(chart, dot, plan)


def height_of(plan: Plan, top: float) -> float:
    """GiB at which it is drawn: at the upper end where it lies above."""
    return min(plan.peak_bytes / GIB, top * 0.985)


def mark_plan(chart: Chart, dot: Line2D, plan: Plan) -> None:
    """The plan behind a dot or disc."""
    chart.mark(
        dot,
        f"{plan.rank}: {plan.label}" if plan.rank else plan.label,
        f"{seconds_text(plan.step_seconds)} a step, {gib(plan.peak_bytes)}, {plan.kind}",
        bytes=plan.peak_bytes,
        seconds=plan.step_seconds,
    )


def name_of(plan: Plan) -> str:
    return f"{plan.rank}  {plan.label}" if plan.rank else plan.label


def number_plans(chart: Chart, axes: Axes, data: Plans) -> list[Plan]:
    """Discs over the best plans, with their numbers. Returns those that no better one covers: the
    others have no number."""
    ranked = sorted((plan for plan in data.plans if plan.rank), key=lambda plan: plan.rank)
    numbered: list[Plan] = []
    free: list[tuple[float, float]] = []
    for plan in ranked:
        at = plan.step_seconds, height_of(plan, axes.get_ylim()[1])
        x, y = axes.transData.transform(at)
        alone = all(max(abs(x - a), abs(y - b)) > DISC_PIXELS for a, b in free)
        [disc] = axes.plot([at[0]], [at[1]], linestyle="none", zorder=5 - 0.01 * plan.rank,
                           clip_on=False, **DISC)  # type: ignore[arg-type]
        mark_plan(chart, disc, plan)
        if alone:
            numbered.append(plan)
            free.append((x, y))
            axes.text(*at, str(plan.rank), ha="center", va="center_baseline", color=INK, zorder=6,
                      fontsize=FOOTER_POINTS, fontweight="bold")
    return numbered


def outside_in(plans: Sequence[Plan]) -> list[Plan]:
    """First, last, second, and so on."""
    return [plan for pair in zip(plans, reversed(plans), strict=True) for plan in pair][: len(plans)]


def name_plans(frame: Frame, axes: Axes, data: Plans, named: Sequence[Plan]) -> None:
    """As many names as have room, in this order; where nothing fits, that of what needs least."""
    top = axes.get_ylim()[1]
    named = named or [min(data.plans, key=lambda p: p.peak_bytes)]
    labels = [
        Label(p.step_seconds, height_of(p, top), name_of(p), ring=bool(p.rank)) for p in named
    ]
    others = [(p.step_seconds, height_of(p, top)) for p in data.plans if p not in named]
    front = [(p.step_seconds, p.peak_bytes / GIB) for p in frontier(data.plans)]
    heights = [level / GIB / top * frame.body.height for level in (data.capacity_bytes, data.room_bytes)]
    taken = [Box(0, y - THIN, frame.width, y + THIN) for y in heights]
    name_dots(axes, labels, others, taken, list(pairwise(front)))


def key_of(
    data: Plans, best: Sequence[Plan], top: float
) -> list[list[tuple[Looks, str, float]]]:
    """What markers mean, those that are drawn alone, in lines: (looks, words, width)."""
    plans = [plan for plan in data.plans if not plan.rank]
    kinds = {plan.kind for plan in plans if plan not in best}
    hollow = any(plan.kind == PASSED_OVER for plan in best)
    above = [plan.peak_bytes / GIB > top for plan in plans]
    entries = [
        (DISC, f"numbered: {data.numbered}", len(plans) < len(data.plans)),
        (looks_of(FITS, True), "none is faster with less memory", bool(best)),
        (looks_of(PASSED_OVER, hollow), "fits, but not in its framework", hollow or PASSED_OVER in kinds),
        (looks_of(FITS, False), "fits", FITS in kinds),
        (looks_of(FITS_NOT, False), "does not fit", FITS_NOT in kinds and not all(above)),
        (ABOVE, "needs more than is drawn", any(above)),
    ]
    lines: list[list[tuple[Looks, str, float]]] = [[]]
    for looks, words, shown in entries:
        width = 0.32 + text_width(words, SMALL_POINTS)
        if shown and sum(w for _, _, w in lines[-1]) + width > WIDTH_INCHES - 0.75:
            lines.append([])
        if shown:
            lines[-1].append((looks, words, width))
    return lines


def draw_key(frame: Frame, key: Sequence[Sequence[tuple[Looks, str, float]]]) -> None:
    """Above the axes, from the left."""
    for number, line in enumerate(key):
        x = frame.body.left
        y = frame.bottom + frame.body.height + 0.1 + LINE * (len(key) - 1 - number)
        for looks, words, width in line:
            marker = Line2D([(x + 0.06) / WIDTH_INCHES], [y / frame.height], linestyle="none",
                            transform=frame.figure.transFigure, **looks)  # type: ignore[arg-type]
            frame.figure.add_artist(marker)
            frame.text(x + 0.16, y, words, va="center_baseline", fontsize=SMALL_POINTS)
            x += width
