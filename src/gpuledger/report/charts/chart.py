"""A finished chart: the figure, what it says in words, and the exact value behind every mark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Mark:
    """What a bar, cell or dot stands for.

    `values` are exact (integers in bytes or FLOPs); `text` is how a reader sees them. A silent
    mark (a slice of a curve) is left out of tables of the chart.
    """

    label: str
    text: str
    values: dict[str, int | float | str]
    silent: bool = False


@dataclass
class Chart:
    """One chart. `name` is the stem of its files; `title` states the finding.

    `description` is read aloud where the picture cannot be seen.
    """

    name: str
    title: str
    description: str
    figure: Figure
    marks: dict[str, Mark] = field(default_factory=dict)

    def mark(
        self, artist: Artist, label: str, text: str, *, silent: bool = False, **values: Any
    ) -> None:
        """Say what an artist stands for."""
        name = f"mark-{len(self.marks)}"
        artist.set_gid(name)
        self.marks[name] = Mark(label, text, values, silent)
