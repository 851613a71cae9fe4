"""Ring attention against PyTorch's, as one rank of N on the emulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import Emulated
from emulated_devices import A100_80GB, H100_80GB

CASES = 12


@pytest.mark.parametrize(("device", "seed"), ((A100_80GB, 1000), (H100_80GB, 2000)))
def test_streams_and_peaks(emulated: Emulated, device: object, seed: int) -> None:
    command = [sys.executable, "-m", "gpuledger.torch_runs.self_check.frameworks", "context",
               str(seed), str(CASES)]
    done = subprocess.run(command, env=emulated.environment(device=device), capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert (summary["equal_streams"], summary["equal_peaks"]) == (CASES, summary["peaks"])
    assert summary["peaks"] > 0
