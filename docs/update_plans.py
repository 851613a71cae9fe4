"""Puts real output into docs/plans.md: `python docs/update_plans.py`.

A block that follows <!-- plan: ARGUMENTS --> holds what `gpuledger plan ARGUMENTS` prints to stdout; one
that follows <!-- file: NAME --> the file of that name that the command before it wrote.
"""
from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "plans.md"
sys.path[:0] = [str(DOCS.parent / "src")]

from gpuledger.cli.main import status_of  # noqa: E402

BLOCK = re.compile(r"(<!-- (plan|file): (.*?) -->\n(`{3,4})\w+\n)(.*?)(\4\n)", re.DOTALL)


def output(arguments: str) -> str:
    """The command and what it prints. Raises RuntimeError where the input is refused."""
    printed, messages = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(messages):
        status = status_of(["plan", *shlex.split(arguments)])
    if status:
        raise RuntimeError(f"plan {arguments}: {messages.getvalue()}")
    lines = "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())
    return f"$ gpuledger plan {arguments}\n{lines}\n"


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(what a block is for, what it should hold), in order; files are those of the command before."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.getcwd()
        os.chdir(folder)
        try:
            for found in BLOCK.finditer(text):
                content = output(found[3]) if found[2] == "plan" else Path("request", found[3]).read_text()
                yield found[3], content
        finally:
            os.chdir(before)


def page(text: str) -> str:
    """The page with its blocks made anew."""
    made = iter(list(blocks(text)))
    return BLOCK.sub(lambda found: found[1] + next(made)[1] + found[6], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
