"""`estimate --explain`: every entry of the peak with its formula, its numbers and its source."""
from __future__ import annotations

from ..estimate import Estimate
from ..formulas import formulas
from ..memory.outside import OutsidePart
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
    named = dict.fromkeys([*(str(row["equation"]) for row in rows if row["equation"]),
                           *(part.equation for part in estimate.memory.outside.parts)])
    known = formulas()
    lines = [f"[{key}] {known[key].quantity}: {known[key].equation}\n     source: {known[key].source}"
             for key in sorted(named) if key in known]
    return "\n".join((table, f"sum {total:,} bytes = peak allocated\n",
                      outside_table(estimate.memory.outside.parts), "", *lines))


def outside_table(parts: tuple[OutsidePart, ...]) -> str:
    """The context and every communicator, as ranges."""
    from tabulate import tabulate

    rows = [[part.name, *(gib(n) for n in (part.nbytes.low, part.nbytes.expected, part.nbytes.high)),
             part.detail, f"[{part.equation}]"] for part in parts]
    return str(tabulate(rows, ["outside the allocator", "at least", "expected", "at most", "what", "formula"],
                        disable_numparse=True, colalign=("left", *("right",) * 3, "left", "left")))
