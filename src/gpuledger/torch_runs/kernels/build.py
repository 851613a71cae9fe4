"""Builds csrc/ into one shared library, outside pip: no setuptools, no ninja, no CUDA torch.

nvcc never sees a torch header, and the binding uses torch's stable ABI, so a library built against
one torch loads in every torch from MINIMUM_TORCH on. Libraries are kept in the cache folder under a
hash of sources, flags and compilers.
"""
from __future__ import annotations

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.torch_runs.kernels import toolchain
from gpuledger.torch_runs.kernels.sources import (
    cache_folder,
    cuda_files,
    source_files,
    source_folder,
)

MODES = ("cpu", "cuda", "host", "emulated")
MINIMUM_TORCH = (2, 11)
DEFAULT_ARCHS = ("80", "90")                # A100; H100 and H200

CXX_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
HOST_FLAGS = ("-x", "c++", *CXX_FLAGS, "-O1", "-Wno-unknown-pragmas")
CUDA_FLAGS = ("-std=c++20", "-O3", "-lineinfo", "-Xcompiler", "-fPIC,-fvisibility=hidden")


@dataclass(frozen=True)
class Step:
    """One source file, and the command that compiles it (without the output)."""

    source: Path
    command: tuple[str, ...]


def namespace_of(mode: str) -> str:
    """The operators' namespace: host's is its own, so that both libraries fit into one process."""
    return "gpuledger_host" if mode == "host" else "gpuledger"


def torch_folder() -> Path:
    """Where torch is installed. Raises InputError if it is missing or too old."""
    try:
        import torch
    except ImportError:
        raise InputError("the kernels need PyTorch, which is not installed",
                         "pip install 'gpuledger[torch]'") from None
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < MINIMUM_TORCH:
        wanted = ".".join(map(str, MINIMUM_TORCH))
        raise InputError(f"the kernels need torch {wanted} or newer, but this is "
                         f"{torch.__version__}", f"pip install 'torch>={wanted}'")
    return Path(torch.__file__).parent


def default_archs() -> tuple[str, ...]:
    """$GPULEDGER_CUDA_ARCHS (such as 80,90), else the GPU's own, else A100's and H100's."""
    if chosen := os.environ.get("GPULEDGER_CUDA_ARCHS"):
        return tuple(chosen.split(","))
    import torch
    if torch.cuda.is_available():
        return ("{}{}".format(*torch.cuda.get_device_capability()),)
    return DEFAULT_ARCHS


def arch_flags(archs: tuple[str, ...]) -> tuple[str, ...]:
    """Machine code for each architecture, and PTX of the last for newer GPUs."""
    flags = [f"arch=compute_{arch},code=sm_{arch}" for arch in archs]
    flags.append(f"arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    return tuple(part for flag in flags for part in ("-gencode", flag))


def compile_steps(mode: str, archs: tuple[str, ...]) -> list[Step]:
    """What has to be compiled for a mode."""
    folder, cxx = source_folder(), toolchain.find_cxx()
    target = (MINIMUM_TORCH[0] << 56) + (MINIMUM_TORCH[1] << 48)
    binding = (cxx, *CXX_FLAGS, "-O1", "-isystem", str(torch_folder() / "include"),
               f"-DTORCH_TARGET_VERSION={target:#018x}ULL",
               f"-DGPULEDGER_NAMESPACE={namespace_of(mode)}",
               f"-DGPULEDGER_CPU_PREFIX=gpuledger_{'host' if mode == 'host' else 'cpu'}_",
               *(("-DGPULEDGER_WITH_CUDA",) if mode in ("cuda", "emulated") else ()), "-c")
    steps = [Step(file, binding) for file in sorted((folder / "binding").glob("*.cpp"))]
    if mode == "host":
        host = (cxx, *HOST_FLAGS, "-c")
        return steps + [Step(file, host) for file in cuda_files(folder)]
    cpu = (cxx, *CXX_FLAGS, "-O3", "-fopenmp", "-c")
    steps += [Step(file, cpu) for file in sorted((folder / "cpu").glob("*.cpp"))]
    if mode == "emulated":
        nothing = folder / "emulated_kernels" / "launch_nothing.cpp"
        steps.append(Step(nothing, (cxx, *CXX_FLAGS, "-O1", "-c")))
    if mode == "cuda":
        cuda = (toolchain.find_nvcc(), *CUDA_FLAGS, *arch_flags(archs), "-c")
        steps = [Step(file, cuda) for file in cuda_files(folder)] + steps   # the slowest first
    return steps


def cuda_runtime() -> str:
    """shared: torch's own CUDA runtime, if nvcc is of the same major version; else static.

    The emulated GPU replaces the shared one. With the static one the library needs no CUDA build of
    torch, and loads in a CPU build as well.
    """
    import torch
    release = re.search(r"release (\d+)", toolchain.run([toolchain.find_nvcc(), "--version"]))
    ours, theirs = release and release[1], (torch.version.cuda or "").split(".")[0]
    return "shared" if ours == theirs else "static"


def link_command(mode: str, archs: tuple[str, ...]) -> tuple[str, ...]:
    """Links objects into a library that needs torch_cpu, and CUDA's part where there is one."""
    libraries = ("-L", str(torch_folder() / "lib"), "-ltorch", "-ltorch_cpu", "-lc10")
    if mode == "cuda":
        return (toolchain.find_nvcc(), "-shared", "-cudart", cuda_runtime(), *arch_flags(archs),
                "-Xlinker", "--no-as-needed", *libraries, "-lgomp")
    return (toolchain.find_cxx(), "-shared", "-Wl,--no-as-needed", *libraries,
            *(() if mode == "host" else ("-fopenmp",)))


def cache_key(steps: list[Step], link: tuple[str, ...]) -> str:
    """Changes with every source, flag and compiler version."""
    folder, digest = source_folder(), hashlib.sha256()
    for file in source_files(folder):
        digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    for command in (*(step.command for step in steps), link):
        digest.update("\0".join(command).encode())
    for compiler in sorted({step.command[0] for step in steps}):
        digest.update(toolchain.run([compiler, "--version"]).encode())
    return digest.hexdigest()[:16]


def build(mode: str, archs: tuple[str, ...] = ()) -> Path:
    """The library of a mode, built unless the cache has it.

    cpu: the plain loops. cuda: those and the CUDA kernels, for `archs`. host: the CUDA sources
    compiled by g++, run on the CPU (tests). emulated: the plain loops, and for CUDA tensors the
    binding alone, whose launches do nothing (the emulated GPU; no nvcc is needed). Raises
    InputError if a compiler or torch is missing.
    """
    if mode not in MODES:
        raise InputError(f"unknown kernel library {mode!r}", f"choose one of {', '.join(MODES)}")
    chosen = (archs or default_archs()) if mode == "cuda" else ()
    steps, link = compile_steps(mode, chosen), link_command(mode, chosen)
    name = f"{mode}-{cache_key(steps, link)}"
    library = cache_folder() / "kernels" / name / "libgpuledger_kernels.so"
    if library.is_file():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = toolchain.in_parallel(lambda step: compile_one(step, Path(scratch)), steps)
        linked = Path(scratch) / library.name
        toolchain.run([link[0], *objects, *link[1:], "-o", linked])
        os.replace(linked, library)         # two builders may race: both results are the same
    return library


def compile_one(step: Step, folder: Path) -> Path:
    """The object file of one step."""
    built = folder / f"{step.source.parent.name}_{step.source.stem}.o"
    toolchain.run([*step.command, step.source, "-o", built])
    return built
