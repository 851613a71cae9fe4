"""Loads a kernel library, and gives its operators their shape and gradient rules."""
from __future__ import annotations

import os
from typing import Any

from gpuledger.errors import InputError
from gpuledger.torch_runs.kernels.build import build, namespace_of

_loaded: dict[str, str] = {}                # namespace -> mode: one library each per process


def default_mode() -> str:
    """cuda where torch sees a GPU, emulated where it is the emulated one, else cpu."""
    import torch
    if not torch.cuda.is_available():
        return "cpu"
    return "emulated" if "GPULEDGER_EMULATED_NAME" in os.environ else "cuda"


def load(mode: str | None = None) -> Any:
    """The operator namespace torch.ops.gpuledger (host: torch.ops.gpuledger_host), ready to call.

    mode: cpu, cuda, host, emulated; None: `default_mode`. Builds on first use.
    Raises InputError if a compiler is missing, or if "cuda" is asked for after "cpu" was loaded.
    """
    import torch

    from gpuledger.torch_runs.kernels import activation, dropout, loss, norm, rotary
    mode = mode or default_mode()
    namespace = namespace_of(mode)
    present = _loaded.get(namespace)
    if present == "cpu" and mode in ("cuda", "emulated"):
        raise InputError("the CPU kernels are loaded already, and a process holds one library",
                         "load the cuda kernels first: they include those for the CPU")
    ops = getattr(torch.ops, namespace)
    if present is None:
        torch.ops.load_library(str(build(mode)))
        for area in (norm, activation, loss, rotary, dropout):
            area.register(namespace)
        _loaded[namespace] = mode
    return ops
