"""Writes docs/formulas.md from the tables in docs/formulas.d: `python docs/update_formulas.py`."""
from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent
INTRODUCTION = """# Formulas

Every equation that gpuledger evaluates: its id (as in docstrings and in `estimate --explain`), where it comes
from, the function that computes it, and the test that pins it. Letters: L layers, h hidden, a heads, d head_dim,
q = a d, kv = kv heads x d, f MLP width, V vocabulary, s tokens of a sequence, b sequences, N parameters.

This page is made from the tables in `formulas.d/` by `python docs/update_formulas.py`.
"""


def page() -> str:
    """The whole page: one section per table, in the order of the files."""
    sections = [f"## {path.stem.replace('_', ' ').capitalize()}\n\n{path.read_text(encoding='utf-8').strip()}\n"
                for path in sorted((DOCS / "formulas.d").glob("*.md"))]
    return "\n".join([INTRODUCTION, *sections])


if __name__ == "__main__":
    (DOCS / "formulas.md").write_text(page(), encoding="utf-8")
