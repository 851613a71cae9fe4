"""Writes the generated tables of docs/conventions.md: python docs/update_conventions.py"""
from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "src"), str(DOCS.parent / "tests")]

from gpuledger.compute.conventions_table import comparison_table, formula_table  # noqa: E402
from test_conventions import CASES  # noqa: E402


def replace_between(page: str, name: str, table: str) -> str:
    """Put the table between the page's comments `name:begin` and `name:end`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def main() -> None:
    path = DOCS / "conventions.md"
    page = replace_between(path.read_text(), "formulas", formula_table())
    cases = [(label, *case) for label, case in CASES.items()]
    path.write_text(replace_between(page, "comparison", comparison_table(cases)))


if __name__ == "__main__":
    main()
