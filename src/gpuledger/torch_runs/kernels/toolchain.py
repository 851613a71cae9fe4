"""Compilers: finding them, running them, and saying what is wrong when they fail."""
from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gpuledger.errors import InputError

Command = Sequence[str | Path]
T = TypeVar("T")
R = TypeVar("R")


def find_cxx() -> str:
    """$CXX, else g++. Raises InputError."""
    wanted = os.environ.get("CXX", "g++")
    if path := shutil.which(wanted):
        return path
    raise InputError(f"no C++ compiler: {wanted} is not on the PATH",
                     "install g++ 11 or newer, or set CXX")


def find_nvcc() -> str:
    """nvcc of $CUDA_HOME, $CUDA_PATH or /usr/local/cuda, else of the PATH. Raises InputError."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    for home in homes:
        if home and os.access(Path(home, "bin", "nvcc"), os.X_OK):
            return str(Path(home, "bin", "nvcc"))
    if path := shutil.which("nvcc"):
        return path
    raise InputError("no CUDA compiler: nvcc is neither in $CUDA_HOME/bin nor on the PATH",
                     "install the CUDA toolkit, set CUDA_HOME, or build the kernels for cpu")


def run(command: Command) -> str:
    """What the command printed, both streams. Raises InputError with the output if it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise InputError(f"{shown}\n{done.stdout.strip()}",
                         "the compiler's own words stand above; gpuledger needs C++20")
    return done.stdout


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """work of every item, as many at a time as there are processors."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(work, items))
