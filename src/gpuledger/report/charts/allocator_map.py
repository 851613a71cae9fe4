"""The allocator's segments at the peak and the blocks in them: what is used and what is free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from gpuledger.units import GIB, gib

from .chart import Chart
from .layout import Body, Frame, Heading, text_width
from .style import COLOURS, MUTED, PAPER, SMALL_POINTS, WIDTH_INCHES, styled

ROWS = 12  # memory is wrapped into so many lines, like text
ROW = 0.21  # inches
EDGE, SWATCH_WIDTH, KEY_GAP, KEY_LINE = 0.12, 0.13, 0.16, 0.16  # inches
MOST_MARKS = 60  # segments that answer to the mouse, the largest
COLOUR_OF = {**COLOURS, "free": "#FFFFFF"}
NAMES = ("parameters", "optimizer", "gradients", "activations", "buffers", "free")


@dataclass(frozen=True)
class MapBlock:
    """A run of adjacent blocks of one kind in one segment: a category, or free."""

    kind: str
    size_bytes: int
    num_blocks: int


@dataclass(frozen=True)
class MapSegment:
    """One segment as cudaMalloc (or cuMemMap) gave it. small: of the pool for up to 1 MiB."""

    size_bytes: int
    small: bool
    blocks: Sequence[MapBlock]


@styled
def allocator_map(
    label: str, segments: Sequence[MapSegment], footer: str, name: str = "allocator"
) -> Chart:
    """All segments, largest first, laid end to end and wrapped into lines of equal length."""
    ordered = sorted(segments, key=lambda segment: -segment.size_bytes)
    total = sum(segment.size_bytes for segment in ordered)
    free = sum(b.size_bytes for s in ordered for b in s.blocks if b.kind == "free")
    share = 100 * free / total if total else 0.0
    title = (
        f"{label}: {gib(total)} reserved in {len(ordered):,} segments, {gib(free)} "
        f"({share:.1f} %) of it free at the peak"
    )
    line = -(-total // ROWS) if total else 1
    subtitle = (
        f"Memory of PyTorch's allocator at the peak, {gib(line)} a line; a gap ends a segment"
    )
    key = key_of(ordered)
    frame = Frame(
        Heading(title, subtitle, footer),
        Body(ROW * ROWS, left=EDGE, right=EDGE, below=0.06, above=0.14 + KEY_LINE * len(key)),
    )
    axes = frame.axes()
    axes.set(xlim=(0, line / GIB), ylim=(ROWS, 0))
    axes.axis("off")
    chart = Chart(name, title, title, frame.figure)
    draw_blocks(axes, ordered, line)
    draw_segments(chart, axes, ordered, line)
    draw_key(frame, key)
    return chart


def draw_blocks(axes: Axes, segments: Sequence[MapSegment], line: int) -> None:
    """The blocks of all segments, one collection of each kind; adjacent equals are joined."""
    runs: list[tuple[str, int, int]] = []
    start = 0
    for segment in segments:
        for block in segment.blocks:
            if runs and runs[-1][0] == block.kind:
                start_of, size = runs[-1][1:]
                runs[-1] = (block.kind, start_of, size + block.size_bytes)
            else:
                runs.append((block.kind, start, block.size_bytes))
            start += block.size_bytes
    for kind in dict.fromkeys(kind for kind, _, _ in runs):
        corners = [
            rectangle(*piece)
            for name, at, size in runs
            if name == kind
            for piece in pieces(at, size, line)
        ]
        free = kind == "free"
        axes.add_artist(
            PolyCollection(
                corners,
                facecolors=COLOUR_OF[kind],
                linewidths=0.25,
                edgecolors=MUTED if free else "none",
                hatch="//////" if free else None,
            )
        )


def draw_segments(chart: Chart, axes: Axes, segments: Sequence[MapSegment], line: int) -> None:
    """White ticks where segments end; the largest say what is in them."""
    start, ticks = 0, []
    for number, segment in enumerate(segments):
        if number < MOST_MARKS:
            parts = dict.fromkeys((block.kind for block in segment.blocks), 0)
            for block in segment.blocks:
                parts[block.kind] += block.size_bytes
            patch = PolyCollection(
                [rectangle(*piece) for piece in pieces(start, segment.size_bytes, line)],
                facecolors="none",
                edgecolors="none",
            )
            axes.add_artist(patch)
            pool = "small pool" if segment.small else "large pool"
            chart.mark(
                patch,
                f"segment {number + 1} of {len(segments):,}, {pool}",
                f"{gib(segment.size_bytes)}: "
                + ", ".join(f"{kind} {gib(nbytes)}" for kind, nbytes in parts.items()),
                silent=True,
                bytes=segment.size_bytes,
            )
        start += segment.size_bytes
        x, row = start % line / GIB, start // line
        ticks.append([(x, row + 0.04), (x, row + 0.96)])
    axes.add_artist(LineCollection(ticks, colors=PAPER, linewidths=1.0))


def rectangle(x: int, row: int, width: int) -> list[tuple[float, float]]:
    """Corners of a piece of a line."""
    left, right = x / GIB, (x + width) / GIB
    return [(left, row + 0.08), (right, row + 0.08), (right, row + 0.92), (left, row + 0.92)]


def pieces(start: int, size: int, line: int) -> Iterator[tuple[int, int, int]]:
    """(x, row, width) of the lines that a run of bytes covers."""
    end = start + size
    while start < end:
        row = start // line
        width = min(end, (row + 1) * line) - start
        yield start - row * line, row, width
        start += width


def key_of(segments: Sequence[MapSegment]) -> list[list[tuple[str, str]]]:
    """(kind, text with its bytes), in as many lines as the chart's width asks for."""
    lines: list[list[tuple[str, str]]] = [[]]
    room = WIDTH_INCHES - 2 * EDGE
    for kind in NAMES:
        nbytes = sum(b.size_bytes for s in segments for b in s.blocks if b.kind == kind)
        if not nbytes:
            continue
        item = (kind, f"{kind} {gib(nbytes)}")
        if sum(map(key_width, [*lines[-1], item])) > room:
            lines.append([])
        lines[-1].append(item)
    return lines


def key_width(item: tuple[str, str]) -> float:
    return SWATCH_WIDTH + text_width(item[1], SMALL_POINTS) + KEY_GAP


def draw_key(frame: Frame, lines: Sequence[Sequence[tuple[str, str]]]) -> None:
    """What the colours mean, with the bytes of each."""
    y = frame.bottom + frame.body.height + 0.08 + KEY_LINE * (len(lines) - 1)
    for line in lines:
        x = frame.body.left
        for kind, text in line:
            frame.swatch(x, y, COLOUR_OF[kind], "//////" if kind == "free" else None)
            frame.text(x + SWATCH_WIDTH, y - 0.012, text, va="bottom", fontsize=SMALL_POINTS)
            x += key_width((kind, text))
        y -= KEY_LINE
