"""Puts the real output of the README's commands into it: `python docs/update_readme.py`.

A block that follows <!-- output:NAME --> holds what the command of <!-- command:NAME --> prints, from its last
`gpuledger ...` on and through the filters behind it, so that an example cannot say what the product no longer says.
"""
from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
COMMAND = re.compile(r"<!-- command:(\w+) -->\n```bash\n(.*?)```", re.DOTALL)
OUTPUT = re.compile(r"(<!-- output:(\w+) -->\n```text\n)(.*?)(```)", re.DOTALL)


def printed(command: str) -> str:
    """What the last gpuledger command of a line prints to stdout."""
    from gpuledger.cli.main import status_of

    command, *filters = command[command.rindex("gpuledger "):].split(" | ")
    arguments = shlex.split(command)[1:]
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer), contextlib.redirect_stderr(io.StringIO()):
        status = status_of(arguments)
    assert status == 0, f"{command!r} ended with {status}"
    text = buffer.getvalue()
    for one in filters:
        done = subprocess.run(shlex.split(one), input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def page() -> str:
    """The README with fresh outputs."""
    text = README.read_text(encoding="utf-8")
    commands = dict(COMMAND.findall(text))
    return OUTPUT.sub(lambda m: m[1] + printed(commands[m[2]]) + m[4], text)


if __name__ == "__main__":
    README.write_text(page(), encoding="utf-8")
