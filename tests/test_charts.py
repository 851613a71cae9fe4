"""Charts of data that is hard to draw: no text over text, nothing cut off, equal bytes, colours told apart."""
from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from chart_samples import FOOTER, bar, pairs, plans, samples
from gpuledger.errors import InputError
from gpuledger.report.charts.breakdown import breakdown
from gpuledger.report.charts.chart import Chart
from gpuledger.report.charts.layout import shortened, spread, text_width, wrapped
from gpuledger.report.charts.pareto import FITS_NOT, frontier
from gpuledger.report.charts.parity import title_of
from gpuledger.report.charts.save import FORMATS, rendered, write_chart
from gpuledger.report.charts.seconds import factor_ticks, seconds_text
from gpuledger.report.charts.style import COLOURS, ON_DARK, PAPER, style, text_on

CHARTS = {chart.name: chart for chart in samples()}
TOLERANCE = 0.5                 # pixels


@pytest.mark.parametrize("name", CHARTS)
def test_no_text_overlaps_and_none_is_cut_off(name: str) -> None:
    boxes = text_boxes(CHARTS[name])
    assert boxes
    width, height = CHARTS[name].figure.bbox.width, CHARTS[name].figure.bbox.height
    for text, (x0, y0, x1, y1) in boxes:
        assert x0 >= 0 and y0 >= 0 and x1 <= width and y1 <= height, f"cut off: {text!r}"
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not overlap(a, b), f"{one!r} lies over {other!r}"


def text_boxes(chart: Chart) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Every text that is drawn (ticks outside of the axes are not), in pixels."""
    drawn: list[Text] = []
    draw = Text.draw

    def note(text: Text, *arguments: Any, **options: Any) -> None:
        drawn.append(text)
        draw(text, *arguments, **options)

    with style(), mock.patch.object(Text, "draw", note):
        canvas = FigureCanvasAgg(chart.figure)
        canvas.draw()
        boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in drawn
                 if text.get_visible() and text.get_text().strip()]
    return [(text, (box.x0, box.y0, box.x1, box.y1)) for text, box in boxes]


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return (min(a[2], b[2]) - max(a[0], b[0]) > TOLERANCE
            and min(a[3], b[3]) - max(a[1], b[1]) > TOLERANCE)


def test_overlap_is_noticed() -> None:
    chart = breakdown([bar("A", 40, 80)], "x", FOOTER)
    chart.figure.text(0.02, 0.97, "over the title", va="top")
    boxes = text_boxes(chart)
    assert any(overlap(a, b) for (_, a), (_, b) in combinations(boxes, 2))


@pytest.mark.parametrize("file_format", FORMATS)
def test_equal_input_gives_equal_bytes(file_format: str) -> None:
    first, second = (breakdown([bar("A", 40, 80), bar("B", 90, 80)], "x", FOOTER) for _ in range(2))
    assert rendered(first, file_format) == rendered(second, file_format)
    assert rendered(first, file_format) == rendered(first, file_format)


@pytest.mark.parametrize("name", CHARTS)
def test_svg_is_well_formed_and_says_its_values(name: str) -> None:
    chart = CHARTS[name]
    root = ET.fromstring(rendered(chart, "svg"))
    assert root.get("role") == "img" and root.get("aria-label") == chart.description
    marks = {g.get("id"): g for g in root.iter() if (g.get("class") or "") == "mark"}
    assert set(marks) == set(chart.marks)
    for gid, mark in chart.marks.items():
        assert marks[gid].get("data-label") == mark.label
        for key, value in mark.values.items():
            assert marks[gid].get(f"data-{key.replace('_', '-')}") == str(value)


def test_svg_asks_for_nothing_from_outside() -> None:
    for chart in CHARTS.values():
        text = rendered(chart, "svg").decode()
        assert "<!DOCTYPE" not in text and "<metadata" not in text
        assert not re.search(r'href="(?!#)|url\((?!#)', text)


def test_matplotlibrc_of_the_user_changes_nothing() -> None:
    import matplotlib
    before = rendered(breakdown([bar("A", 40, 80)], "x", FOOTER), "svg")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "svg.fonttype": "path"}):
        assert rendered(breakdown([bar("A", 40, 80)], "x", FOOTER), "svg") == before


def test_unknown_format_and_missing_folder_are_refused(tmp_path: Path) -> None:
    chart = breakdown([bar("A", 40, 80)], "x", FOOTER)
    with pytest.raises(InputError, match="svg, png, pdf"):
        write_chart(tmp_path / "chart.jpg", chart)
    with pytest.raises(InputError, match="cannot write"):
        write_chart(tmp_path / "nowhere" / "chart.svg", chart)
    assert list(tmp_path.iterdir()) == []


# ---- words that are computed from the data
@pytest.mark.parametrize(("totals", "title"), [
    ((40,), "A fits, with 40.00 GiB to spare"),
    ((81.5,), "A does not fit: 1.50 GiB too much"),
    ((90, 85, 100), "None of 3 fits; B is closest, 5.00 GiB over"),
    ((40, 60), "All 2 fit; B is fullest, at 75 % of its GPU"),
    ((90, 70, 100), "Only B fits, at 70.00 GiB"),
    ((90, 70, 60), "2 of 3 fit; C needs least, 60.00 GiB"),
])
def test_title_states_what_the_bars_say(totals: tuple[float, ...], title: str) -> None:
    bars = [bar(name, total, 80) for name, total in zip("ABC", totals, strict=False)]
    assert breakdown(bars, "x", FOOTER).title == title


def test_frontier_is_what_no_other_plan_beats() -> None:
    best = frontier(plans())
    assert [p.step_seconds for p in best] == sorted(p.step_seconds for p in best)
    assert all(a.peak_bytes > b.peak_bytes for a, b in pairwise(best))
    for plan in plans():
        if plan.kind != FITS_NOT:
            assert any(b.step_seconds <= plan.step_seconds and b.peak_bytes <= plan.peak_bytes for b in best)


def test_best_plans_have_their_numbers_and_markers_are_explained() -> None:
    texts = [text for text, _ in text_boxes(CHARTS["pareto"])]
    assert "1" in texts and any(text.startswith("1  tp") for text in texts)
    assert {"numbered: best plans", "does not fit", "fits, but not in its framework"} <= set(texts)
    assert "fits" not in [text for text, _ in text_boxes(CHARTS["pareto-none"])]
    assert "capacity\n79.00 GiB" in texts and "room\n75.00 GiB" in texts


@pytest.mark.parametrize("name", [name for name in CHARTS if name.startswith("pareto")])
def test_no_name_covers_a_plan_or_a_line(name: str) -> None:
    """The numbers in the discs alone stand on plans."""
    chart = CHARTS[name]
    boxes = [box for text, box in text_boxes(chart) if not text.isdecimal()]
    [axes] = chart.figure.axes
    for line in axes.lines:
        points = line.get_transform().transform(line.get_xydata())
        for (x0, y0), (x1, y1) in pairwise(points) if len(points) > 1 else [(points[0], points[0])]:
            for share in np.linspace(0, 1, 200 if len(points) > 1 else 1):
                x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
                assert not any(a + 1 < x < c - 1 and b + 3 < y < d - 3 for a, b, c, d in boxes)


@given(st.floats(1e-3, 1e6), st.floats(2.6, 1e5))
@settings(max_examples=200, deadline=None)
def test_ticks_of_factors_are_round_and_few(low: float, factor: float) -> None:
    ticks = factor_ticks(low, low * factor)
    assert 1 <= len(ticks) <= 8
    assert all(low <= tick <= low * factor for tick in ticks)
    assert all(float(f"{tick:.1e}") == pytest.approx(tick, rel=1e-12) for tick in ticks)


@pytest.mark.parametrize(("seconds", "text"), [
    (39.58, "39.6 s"), (1567.2, "1,567 s"), (0.05821, "0.0582 s"), (999.4, "999 s"), (999.7, "1,000 s")])
def test_seconds_are_never_powers_of_ten(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_parity_states_bias_mean_and_worst() -> None:
    exact = pairs(60)[::3]
    assert title_of(exact) == "All 20 estimates equal the measurement to the byte"
    two = [pairs(2)[0], pairs(2)[1]]          # errors 0 and 10^7 of 2 x 10^9: 0.5 %
    assert title_of(two) == ("2 estimates, 1 exact to the byte: 0.25 % mean error, +0.25 % bias, "
                             "+0.50 % at worst (gpt2, counter 1)")


# ---- layout
@given(st.lists(st.tuples(st.floats(0, 7), st.floats(0.1, 0.8)), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_spread_keeps_order_and_distance(items: list[tuple[float, float]]) -> None:
    centres = sorted(centre for centre, _ in items)
    widths = [width for _, width in items]
    placed = spread(centres, widths, 0.0, 7.0, 0.05)
    for (a, wa), (b, wb) in pairwise(zip(placed, widths, strict=True)):
        assert b - a >= (wa + wb) / 2 + 0.05 - 1e-9
    if sum(widths) + 0.05 * len(widths) <= 7.0:
        assert placed[0] - widths[0] / 2 >= -1e-9 and placed[-1] + widths[-1] / 2 <= 7.0 + 1e-9


def test_spread_leaves_alone_what_does_not_overlap() -> None:
    assert spread([1.0, 3.0], [0.5, 0.5], 0.0, 7.0) == [1.0, 3.0]


def test_long_text_is_wrapped_and_shortened() -> None:
    text = "a word " * 30 + "x" * 200
    assert all(text_width(line, 8.0) <= 3.0 for line in wrapped(text, 3.0, 8.0))
    assert len(wrapped(text, 3.0, 8.0, most=2)) == 2
    cut = shortened("beginning-of-a-name-and-its-end", 1.0, 8.0)
    assert cut.startswith("beg") and cut.endswith("nd") and "…" in cut and text_width(cut, 8.0) <= 1.0


# ---- colours
# Vienot, Brettel, Mollon 1999 (protan, deutan); Machado, Oliveira, Fernandes 2009 (tritan), linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protan": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deutan": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_categories_are_told_apart_by_everybody(kind: str, theme: str) -> None:
    colours = COLOURS | (dark_theme() if theme == "dark" else {})
    labs = {name: lab(linear(colour) @ np.asarray(BLINDNESS[kind]).T) for name, colour in colours.items()}
    closest = min(float(np.linalg.norm(labs[a] - labs[b])) for a, b in combinations(labs, 2))
    assert closest > 15                        # tab10 falls to 4.6, an Okabe-Ito six to 11.9


@pytest.mark.parametrize("name", COLOURS)
def test_text_on_a_category_is_readable(name: str) -> None:
    assert contrast(COLOURS[name], text_on(COLOURS[name])) > 4.0
    if text_on(COLOURS[name]) == ON_DARK:
        assert contrast(dark_theme()[name], ON_DARK) > 4.0
    assert contrast("#B42318", PAPER) > 4.5


def dark_theme() -> dict[str, str]:
    """Colours that the page changes on a dark background."""
    from gpuledger.report.html import page
    css = page.text("page.css")
    rule = css[css.index(':root[data-theme="dark"]'):].partition("}")[0]
    return {name: value.upper() for name, value in re.findall(r"--(parameters|optimizer): (#\w{6})", rule)}


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* under D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    """WCAG's ratio."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(weights @ linear(c)) + 0.05 for c in (one, other))
    return high / low
