"""docs/plans.md shows what the commands print today."""
from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
sys.path.append(str(DOCS))

from update_plans import BLOCK, PAGE, blocks  # noqa: E402


def test_every_story_is_what_its_command_prints() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = [found[5] for found in BLOCK.finditer(text)]
    assert len(shown) == 11
    for (command, printed), before in zip(blocks(text), shown, strict=True):
        assert printed == before, f"{command}: run python docs/update_plans.py"
