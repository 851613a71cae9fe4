"""The rows of docs/formulas.md at run time: what each equation id means, and where it comes from."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SHIPPED = Path(__file__).parent / "_formulas"                          # in a wheel
CHECKOUT = Path(__file__).parents[2] / "docs" / "formulas.d"           # in a checkout


@dataclass(frozen=True)
class Formula:
    """One row: an id such as S5, the quantity, its equation, the source, the function, the test."""

    id: str
    quantity: str
    equation: str
    source: str
    function: str
    test: str


@lru_cache(maxsize=1)
def formulas() -> dict[str, Formula]:
    """All rows by id, in the order of the files."""
    folder = SHIPPED if SHIPPED.is_dir() else CHECKOUT
    found: dict[str, Formula] = {}
    for path in sorted(folder.glob("*.md")):
        for line in path.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if len(cells) == 6 and cells[0].startswith("["):
                row = Formula(cells[0].strip("[]"), *cells[1:])
                found[row.id] = row
    return found
