"""A reconciliation as text: estimate beside measurement, row by row, with what is left over."""

from __future__ import annotations

from ..torch_runs.reconcile import Reconciliation, Row
from ..units import gib_cell

HEADERS = ["instant", "item", "estimated GiB", "measured GiB", "difference B", "%"]
ALIGNMENT = ("left", "left", "right", "right", "right", "right")


def reconciliation_table(result: Reconciliation) -> str:
    """All rows that hold anything, and the verdict."""
    from tabulate import tabulate

    rows = [row for row in result.rows if row.estimated_bytes or row.measured_bytes]
    shown = ["" if i and rows[i - 1].instant == row.instant else row.instant
             for i, row in enumerate(rows)]
    cells = [[instant, *cells_of(row)] for instant, row in zip(shown, rows, strict=True)]
    table = tabulate(cells, HEADERS, disable_numparse=True, colalign=ALIGNMENT)
    return f"{table}\n\n{verdict(result)}"


def cells_of(row: Row) -> list[str]:
    difference, percent = row.difference_bytes, row.difference_percent
    return [row.item, gib_or_unknown(row.estimated_bytes), gib_or_unknown(row.measured_bytes),
            "" if difference is None else f"{difference:+,}" if difference else "0",
            "" if percent is None else f"{percent:+.3f}" if percent else "0"]


def gib_or_unknown(nbytes: int | None) -> str:
    return "?" if nbytes is None else gib_cell(nbytes)


def verdict(result: Reconciliation) -> str:
    """Exact or not, and the device memory without a row."""
    differing = [row for row in result.rows if row.difference_bytes]
    if not differing:
        return "every row agrees to the byte"
    used = gib_cell(result.measured.bridge.device_used_bytes)
    worst = max(differing, key=lambda row: abs(row.difference_bytes or 0))
    return (f"{len(differing)} of {len(result.rows)} rows differ, at most by "
            f"{worst.difference_bytes:+,} B ({worst.instant}: {worst.item})\n"
            f"unexplained: {result.unexplained_bytes:+,} B of {used} GiB in use")
