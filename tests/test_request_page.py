"""docs/requests.md shows the files that the product writes."""
from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_page_is_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "update_requests.py"))["page"]()
    page = (DOCS / "requests.md").read_text(encoding="utf-8")
    assert page == made, "run python docs/update_requests.py"


def test_every_block_of_the_page_is_filled() -> None:
    page = (DOCS / "requests.md").read_text(encoding="utf-8")
    blocks = page.split("<!-- file:")[1:]
    assert len(blocks) == 8
    for block in blocks:
        name, _, rest = block.partition(" -->\n")
        fence = rest.split("\n")[0].rstrip("abcdefghijklmnopqrstuvwxyz")
        assert len(rest.split(f"\n{fence}\n")[0].splitlines()) > 5, name
