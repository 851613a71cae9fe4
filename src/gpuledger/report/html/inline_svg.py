"""A chart's SVG inside a page: its own ids, the page's colours, the page's width."""

from __future__ import annotations

import re
from html import escape

from ..build import Picture
from ..charts.style import ALARM, COLOURS, INK, MUTED, PALE, PAPER, RULE

VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    PAPER: "paper",
    ALARM: "alarm",
    PALE: "pale",
    **{colour: name for name, colour in COLOURS.items()},
}
COLOUR = re.compile("|".join(colour.lower() for colour in VARIABLES))
BY_COLOUR = {colour.lower(): f"var(--{name})" for colour, name in VARIABLES.items()}
MARK_TITLE = re.compile(r'(<g id="[^"]*mark-\d+" [^>]*>)<title>[^<]*</title>')
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def inline_svg(picture: Picture, prefix: str) -> str:
    """The chart as an element of a page; `prefix` makes its ids its own."""
    svg = COMMENT.sub("", picture.files["svg"].decode())
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", svg)
    svg = re.sub(r'(xlink:)?href="#([^"]+)"', rf'href="#{prefix}\2"', svg)
    svg = MARK_TITLE.sub(r"\1", svg)
    root, rest = svg.split(">", 1)
    root = re.sub(r' (width|height|version|xmlns(:xlink)?)="[^"]*"', "", root)
    rest = re.sub(rf"\A<title>{re.escape(escape(picture.title))}</title>", "", rest)
    rest = re.sub(r"\A<desc>.*?</desc>", "", rest, flags=re.DOTALL)
    rest = COLOUR.sub(lambda found: BY_COLOUR[found[0]], rest)
    return re.sub(r"\n\s*", "\n", f"{root}>{rest}").strip()
