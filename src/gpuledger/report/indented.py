"""JSON for readers: indented, each pair of numbers on one line."""

from __future__ import annotations

import json
import re

PAIR = re.compile(r"\[\n\s+(-?\d+),\n\s+(-?\d+|\"[a-z ]+\")\n\s+\]")


def indented(content: object) -> str:
    """A string holds no line break in JSON, so that pairs alone are joined."""
    return PAIR.sub(r"[\1, \2]", json.dumps(content, indent=2))
