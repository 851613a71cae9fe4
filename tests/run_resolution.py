"""A run resolved from command-line arguments, as `gpuledger estimate` does it."""
from __future__ import annotations

from typing import Any

from gpuledger.config import RunOptions, resolve_run
from gpuledger.errors import InputError

WHOLE = {"gpus", "zero", "seq_len", "micro_batch", "global_batch", "tp", "pp"}


def resolved(arguments: list[str]) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of resolving RUN --option value ..."""
    source, *rest = arguments
    options: dict[str, Any] = {}
    for flag, value in zip(rest[::2], rest[1::2], strict=True):
        name = flag.removeprefix("--").replace("-", "_")
        options[name] = (value,) if name == "set" else int(value) if name in WHOLE else value
    try:
        run, _ = resolve_run(source, RunOptions(**options))
    except InputError as error:
        return 2, "", str(error)
    return 0, run.name, ""
