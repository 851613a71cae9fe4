"""Where the kernel sources lie, and where built libraries are kept."""
from __future__ import annotations

import os
from pathlib import Path

from gpuledger.errors import InputError

PACKAGE = Path(__file__).resolve().parents[2]
FOLDERS = ("include", "compat", "kernels", "cpu", "binding", "emulated_kernels")


def source_folder() -> Path:
    """csrc/: beside the package in a wheel, at the top of a checkout. Raises InputError."""
    for folder in (PACKAGE / "_csrc", PACKAGE.parents[1] / "csrc"):
        if (folder / "include" / "kernels.h").is_file():
            return folder
    raise InputError(f"the kernel sources are missing: no csrc/ near {PACKAGE}",
                     "reinstall gpuledger from a wheel or a full checkout")


def source_files(folder: Path) -> list[Path]:
    """All files a kernel library is built from, sorted."""
    files = (file for name in FOLDERS for file in (folder / name).iterdir())
    return sorted(file for file in files if file.suffix in {".h", ".cuh", ".cu", ".cpp"})


def cuda_files(folder: Path) -> list[Path]:
    """The kernels' translation units."""
    return sorted((folder / "kernels").glob("*.cu"))


def cache_folder() -> Path:
    """$GPULEDGER_CACHE, else $XDG_CACHE_HOME/gpuledger, else ~/.cache/gpuledger."""
    if chosen := os.environ.get("GPULEDGER_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpuledger"
