"""Where a measurement was taken: device, driver, versions, allocator settings."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

import torch

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EMULATED_VARIABLE = "GPULEDGER_EMULATED_NAME"


def is_emulated() -> bool:
    """This process runs on the emulated GPU."""
    return EMULATED_VARIABLE in os.environ


def software_facts() -> dict[str, Any]:
    """Versions, and every setting that changes the allocator."""
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "allocator": {name: os.environ[name] for name in ALLOCATOR_VARIABLES if name in os.environ},
    }


def device_facts() -> dict[str, Any]:
    """The current device and its memory now; outside_bytes is used and not PyTorch's."""
    properties = torch.cuda.get_device_properties()
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "num_sms": properties.multi_processor_count,
        "total_bytes": total,
        "used_bytes": total - free,
        "reserved_bytes": reserved,
        "outside_bytes": total - free - reserved,
        "driver": None if is_emulated() else driver_version(),
    }


def driver_version() -> str | None:
    """As nvidia-smi says it; None where there is no nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().split("\n")[0]
