"""Runs the user's program inside the child process: ``python -m ...launcher SETTINGS_JSON ARGS``.

The program sees itself as ``__main__`` with its own ``sys.argv`` and ``sys.path``; what it prints,
raises or exits with is its own. Afterwards a report of what the allocator saw is written.
"""
from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn


def main() -> NoReturn:
    settings = json.loads(sys.argv[1])
    arguments = sys.argv[2:]

    from .patches import apply_patches
    from .recorder import Recorder

    patches = apply_patches() if settings["distributed"] else []
    recorder = Recorder(max_events=settings["max_events"])
    recorder.start()
    status, error = run_program(settings["kind"], settings["target"], arguments)
    recorder.stop()
    recorder.write(Path(settings["report"]), settings["snapshot"], patches, error)
    _leave(status)


def run_program(kind: str, target: str, arguments: list[str]) -> tuple[int, str | None]:
    """Runs it to its end: (exit status as Python gives it, the exception's last line or None)."""
    runner = _runner(kind, target, arguments)
    try:
        runner()
    except SystemExit as stop:
        return _exit_status(stop.code), None
    except KeyboardInterrupt:
        return 130, "KeyboardInterrupt"
    except BaseException as exception:
        _print_traceback(exception)
        return 1, "".join(traceback.format_exception_only(exception)).strip()
    return 0, None


def _runner(kind: str, target: str, arguments: list[str]) -> Callable[[], Any]:
    if kind == "module":
        sys.argv = [target, *arguments]
        sys.path[0] = os.getcwd()
        return lambda: runpy.run_module(target, run_name="__main__", alter_sys=True)
    if kind == "code":
        sys.argv = ["-c", *arguments]
        sys.path[0] = ""
        return lambda: exec(compile(target, "<string>", "exec"), {"__name__": "__main__"})
    sys.argv = [target, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(target))
    return lambda: runpy.run_path(target, run_name="__main__")


def _exit_status(code: object) -> int:
    """What the interpreter makes of SystemExit: None is 0, a number itself, a text is printed."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _print_traceback(exception: BaseException) -> None:
    """As Python prints it, from the program's own first frame."""
    frames = exception.__traceback__
    own = frames
    while own is not None and _is_ours(own):
        own = own.tb_next
    traceback.print_exception(type(exception), exception, own or frames)


def _is_ours(frame: TracebackType) -> bool:
    name = frame.tb_frame.f_code.co_filename
    return name == __file__ or "runpy" in name


def _leave(status: int) -> NoReturn:
    """Ends the process as the interpreter would, less the teardown of process groups and libraries:
    NCCL's watchdog threads would wait there for peers that do not exist."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
