"""Measures many runs, each in a process of its own, without importing torch for each.

`python -m gpuledger.torch_runs.forks` reads one JSON object a line from stdin, {"arguments": [...],
"errors": FILE, "seconds": LIMIT}, and forks before the device is touched; the child runs
`measure` with these arguments and its stderr in FILE. One line {"status": N} answers each; a run
that takes longer than its limit is killed and answers with the signal's negative number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback

from .measure import main as measure

POLL_SECONDS = 0.02


def serve() -> None:
    """Until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            run_child(request["arguments"], request["errors"])
        status = wait(child, request["seconds"])
        print(json.dumps({"status": status}), flush=True)


def run_child(arguments: list[str], errors: str) -> None:
    """Never returns: the fork must not go on with its parent's loop."""
    status = 1
    try:
        with open(errors, "w") as file:
            os.dup2(file.fileno(), 2)
            os.dup2(2, 1)
        status = measure(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(child: int, seconds: float) -> int:
    """The exit status, or minus the signal that ended it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_SECONDS)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    serve()
