"""Files that are written whole or not at all."""
from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gpuledger.errors import InputError


def write_whole(path: str | Path, data: bytes | str) -> Path:
    """Write `data` (text as UTF-8) to `path`, replacing what is there, and return the path.

    A temporary file in the same folder takes its place when it is complete, so a reader never sees
    half a file. Raises InputError if the folder is missing or cannot be written to.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    unwritable = f"cannot write {path}"
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"{unwritable}: {error.strerror}", "name a writable folder") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())      # mkstemp's files are private
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise InputError(f"{unwritable}: {error.strerror}", "name a writable file") from error
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
