"""`estimate --explain`: every entry of the peak with its formula, its numbers and its source."""
from __future__ import annotations

from ..estimate import Estimate
from ..formulas import formulas
from ..units import gib
from .estimate_json import entries


def explain(estimate: Estimate) -> str:
    """The entries of the peak, largest first, and below them the formulas that they name."""
    from tabulate import tabulate

    rows = sorted(entries(estimate), key=lambda row: -row["bytes"])
    table = tabulate(
        [[row["name"], row["category"], f"{row['bytes']:,}", gib(row["bytes"]),
          row["detail"], f"[{row['equation']}]"] for row in rows if row["bytes"]],
        ["live at the peak", "category", "bytes", "", "what", "formula"],
        disable_numparse=True, colalign=("left", "left", "right", "right", "left", "left"))
    total = sum(row["bytes"] for row in rows)
    named = dict.fromkeys(str(row["equation"]) for row in rows if row["equation"])
    known = formulas()
    lines = [f"[{key}] {known[key].quantity}: {known[key].equation}\n     source: {known[key].source}"
             for key in sorted(named) if key in known]
    return f"{table}\nsum {total:,} bytes = peak allocated\n\n" + "\n".join(lines)
