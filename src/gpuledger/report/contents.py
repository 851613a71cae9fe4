"""What `estimate --json` prints, as reports read it."""

from __future__ import annotations

from typing import Any

Content = dict[str, Any]  # see estimate_json.content
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")


def worst_stage(content: Content) -> Content:
    """The row of the fullest pipeline stage."""
    memory = content["memory"]
    stage: Content = next(
        row for row in memory["by_stage"] if row["stage"] == memory["worst_stage"]
    )
    return stage
