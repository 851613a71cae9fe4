"""Builds the stand-in for the CUDA libraries from ``csrc/emulated_gpu`` with gcc, once per torch.

Two parts make one shared library: the written sources, and one no-op for every other CUDA symbol
that the installed torch needs. Which those are is asked of torch itself (``nm``), so a new torch
needs no new list.
"""
from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuledger.errors import GpuledgerError
from gpuledger.torch_runs.emulated_gpu.installed_torch import InstalledTorch, installed_torch

LIBRARY = "libcuda.so.1"
ALIASES = ("libnvidia-ml.so.1",)
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra")

# Symbols of these libraries are stood in for. cuFile, cuSOLVER, cuSPARSE, cuFFT and NVRTC are not:
# they stay the real ones, and fail by name where they need a device.
STOOD_IN = re.compile(r"(cuda[A-Z]|__cuda|cublas|cudnn|nccl|cu[A-Z])\w+$")
KEPT_REAL = re.compile(
    r"cuFile|cudaGetError(Name|String)$|ncclGet(Version|ErrorString)$"
    r"|cudnnGet(Version|CudartVersion|ErrorString|LastErrorString|Property)$"
)


def build() -> Path:
    """The folder with the stand-in libraries for the installed torch, built if not cached yet.

    The cache is ``$GPULEDGER_CACHE``, else ``$XDG_CACHE_HOME/gpuledger``, else
    ``~/.cache/gpuledger``. Raises GpuledgerError without Linux, a CUDA build of torch, gcc, nm or
    CUDA's headers.
    """
    torch = installed_torch()
    sources = source_folder()
    tools = {name: _tool(name) for name in ("gcc", "nm")}
    target = cache_folder() / f"emulated_gpu-torch{torch.version}-{_fingerprint(torch, sources)}"
    if (target / LIBRARY).exists():
        return target
    with _only_one_at_a_time(target):
        if not (target / LIBRARY).exists():
            _build_whole(torch, sources, tools, target)
    return target


def cache_folder() -> Path:
    """Where built libraries are kept."""
    if chosen := os.environ.get("GPULEDGER_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpuledger"


def source_folder() -> Path:
    """The C sources: inside the installed package, or in the repository of this file."""
    package = Path(__file__).resolve().parents[2]
    for root in (package / "_csrc", package.parents[1] / "csrc"):
        folder = root / "emulated_gpu"
        if (folder / "emulated_gpu.h").exists():
            return folder
    raise GpuledgerError(
        f"the sources of the emulated GPU are missing beside {package}",
        hint="reinstall gpuledger: pip install --force-reinstall gpuledger",
    )


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise GpuledgerError(
            f"{name} was not found; the emulated GPU is built with it on first use",
            hint="install gcc and binutils, for example: apt-get install gcc",
        )
    return found


def _fingerprint(torch: InstalledTorch, sources: Path) -> str:
    """Changes when the sources, this builder or the libraries it asks change."""
    digest = hashlib.sha256(torch.version.encode())
    for path in [Path(__file__), *sorted(sources.rglob("*.[ch]"))]:
        digest.update(path.read_bytes())
    for path in torch.libraries:
        digest.update(f"{path}:{path.stat().st_size}".encode())
    return digest.hexdigest()[:16]


@contextmanager
def _only_one_at_a_time(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_whole(torch: InstalledTorch, sources: Path, tools: dict[str, str], target: Path) -> None:
    """Builds in a temporary folder beside ``target``, then renames it: whole or not at all."""
    headers = _header_folder(torch)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        work = Path(temporary)
        objects = [_compile(source, sources, headers, work, tools["gcc"])
                   for source in sorted(sources.glob("*.c"))]
        missing = _needed(torch, headers, tools["nm"]) - _defined(objects, tools["nm"])
        stubs = work / "generated_stubs.c"
        stubs.write_text(_stub_source(sorted(missing)))
        objects.append(_compile(stubs, sources, headers, work, tools["gcc"]))
        output = work / "out"
        output.mkdir()
        _run([tools["gcc"], "-shared", f"-Wl,-soname,{LIBRARY}", "-o", str(output / LIBRARY),
              *map(str, objects), "-lpthread", "-ldl"])
        for alias in ALIASES:
            (output / alias).symlink_to(LIBRARY)
        (output / "generated_stubs.txt").write_text("\n".join(sorted(missing)) + "\n")
        output.rename(target)


def _header_folder(torch: InstalledTorch) -> Path:
    """CUDA's headers of the version torch was built with: struct layouts must match."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    candidates = [path.parent for path in torch.vendor_files("*/include/cuda_runtime_api.h")]
    for folder in (*candidates, toolkit):
        if (folder / "cuda.h").exists() and _header_major(folder) == torch.cuda.split(".")[0]:
            return folder
    raise GpuledgerError(
        f"no CUDA {torch.cuda} headers (cuda.h, cuda_runtime_api.h) were found",
        hint="install torch with its dependencies, or set CUDA_HOME to a toolkit",
    )


def _header_major(folder: Path) -> str:
    text = (folder / "cuda.h").read_text(errors="replace")
    version = re.search(r"#define CUDA_VERSION (\d+)", text)
    return str(int(version[1]) // 1000) if version else ""


def _compile(source: Path, sources: Path, headers: Path, work: Path, gcc: str) -> Path:
    target = work / f"{source.stem}.o"
    includes = ("-I", str(sources / "include"), "-isystem", str(headers), "-I", str(sources))
    _run([gcc, *FLAGS, *includes, "-c", str(source), "-o", str(target)])
    return target


def _needed(torch: InstalledTorch, headers: Path, nm: str) -> set[str]:
    """The CUDA symbols that torch links, the CUDA runtime, and the driver API it looks up."""
    names = _symbols([nm, "-D", "--undefined-only", *map(str, torch.libraries)])
    runtime = torch.vendor_files("*/lib/libcudart.so.*")
    if runtime:
        names |= _symbols([nm, "-D", "--defined-only", *map(str, runtime)])
    driver = (headers / "cuda.h").read_text(errors="replace")
    names |= set(re.findall(r"CUDAAPI (cu[A-Z]\w*)\s*\(", driver))
    return {name for name in names if STOOD_IN.match(name) and not KEPT_REAL.match(name)}


def _defined(objects: list[Path], nm: str) -> set[str]:
    return _symbols([nm, "--defined-only", *map(str, objects)])


def _symbols(command: list[str]) -> set[str]:
    lines = [line for line in _run(command).splitlines() if line.strip()]
    return {line.split()[-1].split("@")[0] for line in lines if not line.endswith(":")}


def _stub_source(names: list[str]) -> str:
    """One no-op per name, which reports its first call. CUDA's success is 0 in every library."""
    stub = ("int {0}(void) {{ static int called; if (!called) {{ called = 1; "
            "log_generic_call(\"{0}\"); }} return 0; }}\n")
    return "void log_generic_call(const char *);\n" + "".join(stub.format(name) for name in names)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        first_error = next((line for line in said if "error" in line), said[0])
        raise GpuledgerError(
            f"building the emulated GPU failed: {first_error}",
            hint=f"run it by hand: {' '.join(command[:3])} ... {command[-1]}",
        )
    return done.stdout
