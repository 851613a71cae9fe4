"""The environment variables that put a child process on the emulated GPU."""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.torch_runs.emulated_gpu.build import LIBRARY, build
from gpuledger.torch_runs.emulated_gpu.device import EmulatedDevice

MAX_DEVICES = 64  # MAX_DEVICES in emulated_gpu.h


def emulated_environment(
    device: EmulatedDevice,
    *,
    devices: int = 1,
    trace: Path | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """A whole environment for a child process that sees ``devices`` emulated GPUs of this kind.

    ``base`` is what it adds to (default: this process's environment). ``trace`` is a file to which
    the first call of every generated stand-in is appended. Builds the libraries on first use.

    Raises InputError for a number of devices outside 1..64, GpuledgerError where nothing can be
    built.
    """
    if not 1 <= devices <= MAX_DEVICES:
        raise InputError(f"{devices} emulated devices", hint=f"ask for 1 to {MAX_DEVICES}")
    libraries = build()
    environment = dict(os.environ if base is None else base)
    for variable, value in (("LD_PRELOAD", libraries / LIBRARY), ("LD_LIBRARY_PATH", libraries)):
        before = environment.get(variable)
        environment[variable] = f"{value}:{before}" if before else str(value)
    environment |= {
        "GPULEDGER_EMULATED_NAME": device.name,
        "GPULEDGER_EMULATED_CAPABILITY": f"{device.capability[0]}.{device.capability[1]}",
        "GPULEDGER_EMULATED_SMS": str(device.num_sms),
        "GPULEDGER_EMULATED_TOTAL_BYTES": str(device.total_bytes),
        "GPULEDGER_EMULATED_CONTEXT_BYTES": str(device.context_bytes),
        "GPULEDGER_EMULATED_DEVICES": str(devices),
        "TRITON_LIBCUDA_PATH": str(libraries),
        # At exit torch waits up to 10 s for autograd's device threads; they may be parked for good
        # (csrc/emulated_gpu/interpreter_exit.c), and nothing is lost by not waiting.
        "TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT": "0",
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if trace is not None:
        environment["GPULEDGER_EMULATED_TRACE"] = str(trace)
    return environment
