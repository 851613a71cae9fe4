"""An axis of seconds: from the fastest to the slowest, by factors where they are far apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

FAR_APART = 2.5  # slowest over fastest: from here on equal distances are equal factors
RIGHT = 0.07  # of the axes' width: room right of the dots
LEAST = 0.3  # of the fastest: the least that the dots span
STEPS = (1, 1.5, 2, 3, 5, 7)
MOST_POWERS = 5  # of ten, which take more room than other ticks
MOST_TICKS = 8  # of factors, and one fewer of equal distances


def scale_seconds(axes: Axes, seconds: Sequence[float], left: float) -> None:
    """Limits and ticks of the horizontal axis. left: of its width, room for names before the dots."""
    fastest, slowest = min(seconds), max(seconds)
    whole = 1 - left - RIGHT
    if slowest > FAR_APART * fastest:
        span = math.log(slowest / fastest) / whole
        low, high = fastest * math.exp(-left * span), slowest * math.exp(RIGHT * span)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(factor_ticks(low, high)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        span = max(slowest - fastest, LEAST * fastest) / whole
        low, high = fastest - left * span, slowest + RIGHT * span
        axes.xaxis.set_major_locator(MaxNLocator(MOST_TICKS - 1, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axes.set_xlim(low, high)


def factor_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two seconds, at most MOST_TICKS."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    finer = [(STEPS, 1), ((1, 2, 5), 1), ((1, 3), 1)]
    for steps, stride in (*finer, *(((1,), stride) for stride in range(1, len(decades) + 1))):
        values = [m * 10.0**decade for decade in decades[::stride] for m in steps]
        found = [value for value in values if low <= value <= high]
        if len(found) <= (MOST_TICKS if len(steps) > 1 else MOST_POWERS):
            break
    return found


def tick_text(value: float) -> str:
    return f"{value:,.10g}"


def seconds_text(seconds: float) -> str:
    """Three digits, and all of whole seconds: `39.6 s`, `1,567 s`."""
    return f"{seconds:,.0f} s" if seconds >= 999.5 else f"{seconds:.3g} s"
