"""The torch that is installed, found without importing it."""
from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import GpuledgerError

INSTALL_HINT = "install a CUDA build of torch 2.9 or newer on Linux: pip install 'torch>=2.9'"
OLDEST = (2, 9)


@dataclass(frozen=True)
class InstalledTorch:
    """A CUDA build of torch: where it is, its version and the CUDA version it was built with."""

    folder: Path
    version: str
    cuda: str

    @property
    def libraries(self) -> list[Path]:
        """The shared libraries of torch itself that call CUDA."""
        names = ("c10_cuda", "torch_cuda", "torch_python", "torch_cuda_linalg", "torch_cpu",
                 "torch_nvshmem", "torch_global_deps", "caffe2_nvrtc")
        found = (self.folder / "lib" / f"lib{name}.so" for name in names)
        return [path for path in found if path.exists()]

    def vendor_files(self, pattern: str) -> list[Path]:
        """Files of the ``nvidia-*`` wheels beside torch, by glob pattern under ``nvidia/``."""
        return sorted((self.folder.parent / "nvidia").glob(pattern))


def installed_torch() -> InstalledTorch:
    """The installed CUDA build of torch.

    Raises GpuledgerError where there is none: another system, no torch, a CPU or ROCm build, too
    old.
    """
    if sys.platform != "linux":
        raise GpuledgerError(
            f"the emulated GPU needs Linux; this is {sys.platform}", hint=INSTALL_HINT)
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise GpuledgerError("torch is not installed", hint=INSTALL_HINT)
    folder = Path(next(iter(spec.submodule_search_locations)))
    version, cuda = _read_version(folder / "version.py")
    if cuda is None:
        raise GpuledgerError(f"torch {version} is not a CUDA build", hint=INSTALL_HINT)
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise GpuledgerError(f"torch {version} is older than 2.9", hint=INSTALL_HINT)
    return InstalledTorch(folder, version, cuda)


def _read_version(path: Path) -> tuple[str, str | None]:
    """(version, CUDA version or None) from torch/version.py, which is read, not run."""
    text = path.read_text() if path.exists() else ""
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\s*(?::[^=]*)?=\s*'([^']+)'", text, re.MULTILINE)
    return version[1] if version else "unknown", cuda[1] if cuda else None
