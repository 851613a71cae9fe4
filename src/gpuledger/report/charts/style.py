"""One style for every chart: colours with a fixed meaning, sizes in inches, nothing global."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib

# Paul Tol's muted scheme and grey, told apart in every form of colour blindness (test_charts).
COLOURS = {
    "parameters": "#332288",
    "gradients": "#DDCC77",
    "optimizer": "#117733",
    "activations": "#CC6677",
    "buffers": "#88CCEE",
    "cached": "#BBBBBB",
}
TIME_COLOURS = ("#332288", "#88CCEE", "#CC6677", "#DDCC77", "#117733", "#BBBBBB")
INK, MUTED, RULE, PAPER = "#1F2328", "#59636E", "#D1D9E0", "#FFFFFF"
ALARM, PALE = "#B42318", "#F3F4F6"
ON_DARK, ON_PALE = "#FFFFFE", "#1E2227"  # text on a coloured area, on light and dark pages alike
DARK_COLOURS = ("#332288", "#117733")  # areas that take light text

WIDTH_INCHES = 7.2
DOTS_PER_INCH = 150
TITLE_POINTS, TEXT_POINTS, SMALL_POINTS, FOOTER_POINTS = 11.0, 8.0, 7.0, 6.0

SETTINGS: dict[str, Any] = {
    "figure.dpi": DOTS_PER_INCH,
    "savefig.dpi": DOTS_PER_INCH,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "savefig.facecolor": PAPER,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": TEXT_POINTS,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": TEXT_POINTS,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": TEXT_POINTS,
    "ytick.labelsize": TEXT_POINTS,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.7,
    "path.sketch": None,
    "text.hinting": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "gpuledger",
    "pdf.fonttype": 3,
    "pdf.compression": 9,
    "path.simplify": False,
    "agg.path.chunksize": 0,
}


def text_on(colour: str) -> str:
    """The ink that is read best on an area of one of the charts' colours."""
    return ON_DARK if colour in DARK_COLOURS else ON_PALE


P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's own defaults and SETTINGS, whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)  # type: ignore[arg-type]
        yield


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run inside `style()`."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with style():
            return function(*args, **kwargs)

    return inside
