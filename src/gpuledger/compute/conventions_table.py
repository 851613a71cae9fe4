"""The tables of docs/conventions.md: `docs/update_conventions.py` writes them."""
from __future__ import annotations

from collections.abc import Sequence

from ..config.model import Model
from .convention_formulas import CONVENTIONS
from .conventions import model_flops_per_sequence


def formula_table() -> str:
    """Every convention with its formula, what it counts and its source, as a Markdown table."""
    rows = [(f"`{c.name}`", f"`{c.formula}`", c.attention, c.vocabulary, c.source)
            for c in CONVENTIONS.values()]
    return markdown_table(
        ("convention", "FLOPs per token", "attention core", "outside the blocks", "source"), rows)


def comparison_table(cases: Sequence[tuple[str, Model, int]]) -> str:
    """Each convention's count as a ratio to `exact`, for (label, model, tokens of a sequence)."""
    rows = [(f"`{name}`", *(f"{_ratio(model, seq_len, name):.2f}" for _, model, seq_len in cases))
            for name in CONVENTIONS if name != "exact"]
    exact = [f"{model_flops_per_sequence(model, seq_len, 'exact') / seq_len / 1e9:,.3f}"
             for _, model, seq_len in cases]
    rows.append(("`exact`, GFLOP per token", *exact))
    return markdown_table(("convention", *(label for label, _, _ in cases)), rows)


def _ratio(model: Model, seq_len: int, convention: str) -> float:
    count = model_flops_per_sequence(model, seq_len, convention)
    return count / model_flops_per_sequence(model, seq_len, "exact")


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
