"""Real PyTorch on the emulated GPU, in child processes.

Where it cannot be had (no CUDA build of torch, no gcc) these tests skip with the reason; with
GPULEDGER_REQUIRE_EMULATED=1 they fail instead, so that a run that should hold them cannot lose
them.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from emulated_devices import H100_80GB

from gpuledger.errors import GpuledgerError
from gpuledger.torch_runs.emulated_gpu import EmulatedDevice, build, emulated_environment

SOURCES = Path(__file__).resolve().parents[2] / "src"
PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Emulated:
    """Runs Python on emulated GPUs. ``device`` is used where a call names no other."""

    device: EmulatedDevice = H100_80GB

    def environment(
        self, device: EmulatedDevice | None = None, devices: int = 1,
        variables: Mapping[str, str] | None = None, trace: Path | None = None,
    ) -> dict[str, str]:
        environment = emulated_environment(device or self.device, devices=devices, trace=trace)
        paths = [str(SOURCES), str(PROGRAMS), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return environment | {"HF_HUB_OFFLINE": "1"} | dict(variables or {})

    def process(
        self, program: str | Path, *arguments: str, timeout: float = 120, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """The finished child process of a snippet (str) or a script (Path); it may have failed."""
        command: Sequence[str] = ("-c", program) if isinstance(program, str) else (str(program),)
        return subprocess.run(
            [sys.executable, *command, *arguments], env=self.environment(**options),
            capture_output=True, text=True, timeout=timeout,
        )

    def run(self, program: str | Path, *arguments: str, **options: Any) -> Any:
        """Runs a snippet or a script and returns the JSON on its last line of output.

        Options: device, devices, variables (more environment), trace, timeout (seconds).
        """
        done = self.process(program, *arguments, **options)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def emulated() -> Emulated:
    """The emulated GPU, built once."""
    try:
        build()
    except GpuledgerError as error:
        if os.environ.get("GPULEDGER_REQUIRE_EMULATED") == "1":
            pytest.fail(f"GPULEDGER_REQUIRE_EMULATED=1, but: {error}", pytrace=False)
        pytest.skip(str(error).replace("\n", "; "))
    return Emulated()
