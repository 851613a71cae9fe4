"""Words of a shell command: everything quoted, but for variables that are meant to be read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from ...config.run import Run


class Shell(str):
    """Shell text that stands as it is, its variables in double quotes."""


class Start(str):
    """A word that begins a line: a program or a script."""


def quoted(word: str) -> str:
    """The word for a POSIX shell."""
    return str(word) if isinstance(word, Shell) else shlex.quote(word)


def command(words: Iterable[str], indent: str = "") -> str:
    """One command, each option on a line of its own."""
    return f" \\\n{indent}    ".join(" ".join(line) for line in grouped(words))


def grouped(words: Iterable[str]) -> Iterator[list[str]]:
    """An option and its values make a line; so does a program."""
    line: list[str] = []
    for word in words:
        if line and (isinstance(word, Start) or word.startswith("-")):
            yield line
            line = []
        line.append(quoted(word))
    if line:
        yield line


def one_line(text: str) -> str:
    """Text for a comment: no character that would end it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def recompute_text(run: Run) -> str:
    """`full`, or `of one block in 2` for {every: 2}."""
    recompute = run.training.recompute
    return recompute if isinstance(recompute, str) else f"of one block in {recompute.every}"
