"""A reconciliation as text: estimate beside measurement, row by row, with what is left over."""

from __future__ import annotations

from typing import Any

from ..units import gib_cell

HEADERS = ["instant", "item", "estimated GiB", "measured GiB", "difference B", "%"]
ALIGNMENT = ("left", "left", "right", "right", "right", "right")
Row = dict[str, Any]


def rows_table(memory: dict[str, Any]) -> str:
    """All rows of `reconciliation_content` that hold anything, and the verdict."""
    from tabulate import tabulate

    rows: list[Row] = [r for r in memory["rows"] if r["estimated_bytes"] or r["measured_bytes"]]
    shown = ["" if i and rows[i - 1]["instant"] == row["instant"] else row["instant"]
             for i, row in enumerate(rows)]
    cells = [[instant, *cells_of(row)] for instant, row in zip(shown, rows, strict=True)]
    table = tabulate(cells, HEADERS, disable_numparse=True, colalign=ALIGNMENT)
    return f"{table}\n\n{verdict(memory)}"


def cells_of(row: Row) -> list[str]:
    """One row behind its instant; what a side does not know is a question mark."""
    difference, measured = row["difference_bytes"], row["measured_bytes"]
    sides = ["?" if row[side] is None else gib_cell(row[side])
             for side in ("estimated_bytes", "measured_bytes")]
    if difference is None:
        return [row["item"], *sides, "", ""]
    if not difference:
        return [row["item"], *sides, "0", "0"]
    percent = f"{100 * difference / measured:+.3f}" if measured else ""
    return [row["item"], *sides, f"{difference:+,}", percent]


def verdict(memory: dict[str, Any]) -> str:
    """Exact or not, and the device memory in use without a row."""
    differing = [row for row in memory["rows"] if row["difference_bytes"]]
    if not differing:
        return "every row agrees to the byte"
    worst = max(differing, key=lambda row: abs(int(row["difference_bytes"])))
    return (f"{len(differing)} of {len(memory['rows'])} rows differ, at most by "
            f"{worst['difference_bytes']:+,} B ({worst['instant']}: {worst['item']})\n"
            f"unexplained: {memory['unexplained_bytes']:+,} B of the device memory in use")
