"""Two runs side by side, differences first: settings, figures, and what is live at the peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..units import gib, scaled
from .contents import CATEGORIES, Content, worst_stage

IGNORED = ("name", "sources", "source")  # keys of a run that change no number
BYTES = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


@dataclass(frozen=True)
class Setting:
    """One key of the runs; None where a run does not have it."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Figure:
    """One number of both runs; None where it is not known. kind: bytes or FLOPs."""

    name: str
    first: int | None
    second: int | None
    kind: str = "bytes"

    @property
    def difference(self) -> int | None:
        """Second minus first."""
        return None if self.first is None or self.second is None else self.second - self.first

    def text(self, value: int | None) -> str:
        if value is None:
            return "?"
        return gib(value) if self.kind == "bytes" else scaled(value, "FLOP")

    @property
    def difference_text(self) -> str:
        """With its sign, and in per cent of the first."""
        if self.difference is None:
            return "?"
        if not self.difference:
            return "="
        sign = "+" if self.difference > 0 else "-"
        share = f" ({100 * self.difference / self.first:+,.1f} %)" if self.first else ""
        return f"{sign}{self.text(abs(self.difference))}{share}"


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs. Each list holds differences first, the largest on top."""

    labels: tuple[str, str]
    settings: tuple[Setting, ...]
    figures: tuple[Figure, ...]
    entries: tuple[Figure, ...]

    @property
    def verdict(self) -> str:
        """One sentence: which needs less memory, and by what most."""
        peak = next(f for f in self.figures if f.name == "device used")
        if not peak.difference:
            return f"{self.labels[0]} and {self.labels[1]} need the same memory"
        less, more = self.labels if peak.difference > 0 else self.labels[::-1]
        names = set(CATEGORIES)
        most = max(
            (f for f in self.figures if f.name in names), key=lambda f: abs(f.difference or 0)
        )
        return (
            f"{less} needs {gib(abs(peak.difference))} less than {more}; most of it is "
            f"{most.name} ({most.difference_text})"
        )


def compare(first: tuple[str, Content], second: tuple[str, Content]) -> Comparison:
    """Two (label, content of `estimate --json`)."""
    a, b = first[1], second[1]
    settings = [
        Setting(key, x, y) for key, x, y in paired(flat(a["run"]), flat(b["run"])) if x != y
    ]
    return Comparison(
        (first[0], second[0]),
        tuple(settings),
        tuple(by_difference(figures(a, b))),
        tuple(by_difference(entries(a, b))),
    )


def by_difference(rows: list[Figure]) -> list[Figure]:
    """Differing rows first, the largest difference on top; equal rows in their own order."""

    def size(row: Figure) -> int:
        return abs(row.difference) if row.difference is not None else 0

    kinds = list(dict.fromkeys(row.kind for row in rows))
    return sorted(rows, key=lambda row: (not size(row), kinds.index(row.kind), -size(row)))


def figures(a: Content, b: Content) -> list[Figure]:
    """Categories and counters of the fullest stage, totals, FLOPs."""
    stage_a, stage_b = worst_stage(a), worst_stage(b)
    rows = [Figure(name, stage_a[f"{name}_bytes"], stage_b[f"{name}_bytes"]) for name in CATEGORIES]
    rows += [
        Figure(name.removesuffix("_bytes").replace("_", " "), stage_a[name], stage_b[name])
        for name in BYTES
    ]
    for name in ("device_used_bytes", "capacity_bytes", "headroom_bytes"):
        rows.append(
            Figure(
                name.removesuffix("_bytes").replace("_", " "), a["memory"][name], b["memory"][name]
            )
        )
    for name in ("weights_bytes", "full_bytes"):
        rows.append(
            Figure(
                f"checkpoint, {name.removesuffix('_bytes')}",
                a["checkpoint"][name],
                b["checkpoint"][name],
            )
        )
    for name in ("model_flops_per_step", "hardware_flops_per_step", "model_flops_per_token"):
        rows.append(Figure(name.replace("_", " "), a["flops"][name], b["flops"][name], "FLOPs"))
    return rows


def entries(a: Content, b: Content) -> list[Figure]:
    """Bytes of each kind of tensor live at the peaks, 0 where a run has none of it."""

    def totals(content: Content) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in content["entries"]:
            key = f"{entry['category']}: {entry['name']}"
            found[key] = found.get(key, 0) + entry["bytes"]
        return found

    return [Figure(key, x or 0, y or 0) for key, x, y in paired(totals(a), totals(b))]


def flat(keys: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys and their values."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        if key in IGNORED:
            continue
        path = f"{prefix}{key}"
        if isinstance(value, dict) and path != "training.recompute":
            found |= flat(value, f"{path}.")
        else:
            found[path] = value
    return found


def paired(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(key, value of a, value of b) over all keys, None where one has it not."""
    for key in dict.fromkeys((*a, *b)):
        yield key, a.get(key), b.get(key)


def comparison_table(comparison: Comparison) -> str:
    """For a terminal: the verdict, the settings that differ, then the figures."""
    from tabulate import tabulate

    first, second = comparison.labels
    settings = tabulate(
        [[s.key, str(s.first), str(s.second)] for s in comparison.settings] or [["(none)", "", ""]],
        ["setting that differs", first, second],
        disable_numparse=True,
    )

    def rows(figures: tuple[Figure, ...], keep: Callable[[Figure], object]) -> list[list[str]]:
        return [
            [f.name, f.text(f.first), f.text(f.second), f.difference_text]
            for f in figures
            if keep(f)
        ]

    align = ("left", "right", "right", "right")
    numbers = tabulate(
        rows(comparison.figures, lambda f: True),
        ["", first, second, "difference"],
        disable_numparse=True,
        colalign=align,
    )
    return f"{comparison.verdict}\n\n{settings}\n\n{numbers}"
