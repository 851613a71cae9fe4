"""Compiles every CUDA file strictly: no warning, no spilled register, no local memory."""
from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.torch_runs.kernels import toolchain
from gpuledger.torch_runs.kernels.build import DEFAULT_ARCHS, HOST_FLAGS
from gpuledger.torch_runs.kernels.sources import cuda_files, source_folder

STRICT_CUDA = ("-std=c++20", "-O3", "-Werror", "all-warnings",
               "-Xptxas", "-v,-warn-spills,-warn-lmem-usage", "-c")
# -Wconversion: a 64-bit index that is squeezed into 32 bits is an error.
STRICT_HOST = (*HOST_FLAGS, "-Werror", "-Wconversion", "-Wno-sign-conversion", "-c")


@dataclass(frozen=True)
class Checked:
    """One file, compiled for one target: sm_80, sm_90 or host."""

    source: Path
    target: str
    seconds: float
    kernels: int
    max_registers: int
    failure: str

    def __str__(self) -> str:
        name = f"{self.source.parent.name}/{self.source.name}"
        if self.failure:
            return f"{name:32} {self.target:6} FAILED\n{self.failure}"
        what = f"{self.kernels:3} kernels, at most {self.max_registers:3} registers, no spills"
        return f"{name:32} {self.target:6} ok {self.seconds:5.1f} s  " + (
            what if self.kernels else "no warnings")


def check_one(source: Path, target: str, folder: Path) -> Checked:
    """Compiles one file for one target."""
    built = folder / f"{source.stem}_{target}.o"
    command: toolchain.Command
    if target == "host":
        command = [toolchain.find_cxx(), *STRICT_HOST, source, "-o", built]
    else:
        command = [toolchain.find_nvcc(), f"-arch={target}", *STRICT_CUDA, source, "-o", built]
    start = time.monotonic()
    try:
        printed, failure = toolchain.run(command), ""
    except InputError as error:
        printed, failure = "", error.problems[0].message
    registers = [int(used) for used in re.findall(r"Used (\d+) registers", printed)]
    return Checked(source, target, time.monotonic() - start, len(registers),
                   max(registers, default=0), failure)


def check_all(archs: tuple[str, ...] = DEFAULT_ARCHS) -> Iterator[Checked]:
    """Every CUDA file for every architecture, and for the host. Raises InputError without nvcc."""
    toolchain.find_nvcc()
    targets = [f"sm_{arch}" for arch in archs] + ["host"]
    work = [(file, target) for file in cuda_files(source_folder()) for target in targets]
    with tempfile.TemporaryDirectory() as folder:
        yield from toolchain.in_parallel(lambda item: check_one(*item, Path(folder)), work)
