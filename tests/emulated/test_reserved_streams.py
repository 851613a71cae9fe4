"""Reserved bytes of FSDP2 runs with its side streams, against PyTorch's allocator."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import Emulated
from emulated_devices import H100_80GB

CASES = 24                              # drawn; about half of them are rank 0's


@pytest.mark.parametrize("framework", ["fsdp2", "fsdp2-tp"])
def test_reserved_bytes_of_whole_runs(emulated: Emulated, framework: str) -> None:
    """Nearly all equal; on one stream nearly none would be."""
    command = [sys.executable, "-m", "gpuledger.torch_runs.self_check.reserved", "0", str(CASES), framework]
    done = subprocess.run(command, env=emulated.environment(device=H100_80GB), capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert summary["cases"] >= 10
    assert summary["equal"] >= summary["cases"] - 1
    assert summary["equal_on_one_stream"] <= 2
    assert summary["worst_error"] < 0.15
