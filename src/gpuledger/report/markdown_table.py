"""Tables of GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(escaped(cell) for cell in line) + " |" for line in lines)


def escaped(text: str) -> str:
    """What would end a cell or an image's description."""
    return text.replace("|", "\\|").replace("\n", " ").replace("[", "\\[").replace("]", "\\]")
