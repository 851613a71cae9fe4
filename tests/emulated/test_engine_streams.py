"""The engine against PyTorch on the emulated GPU: streams of steady steps, and whole runs.

`benchmarks/engine/streams.py` runs the same comparison on 2,000 configurations.
"""
from __future__ import annotations

import json
import subprocess
import sys

import pytest
from emulated_devices import A100_80GB, H100_80GB

from gpuledger.torch_runs.emulated_gpu import EmulatedDevice

L40S_48GB = EmulatedDevice("NVIDIA L40S", (8, 9), 142, 47_697_362_944)
B200_180GB = EmulatedDevice("NVIDIA B200", (10, 0), 148, 191_502_483_456)
DEVICES = {"8.0": A100_80GB, "8.9": L40S_48GB, "9.0": H100_80GB, "10.0": B200_180GB}
STREAMS = 25                       # per device
WHOLE_RUNS = 6


def self_check(emulated, device, *arguments):
    """The summary of a comparison that found no difference, or a failure that shows the first few."""
    command = [sys.executable, "-m", "gpuledger.torch_runs.self_check", *map(str, arguments)]
    done = subprocess.run(command, env=emulated.environment(device=device), capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("capability", DEVICES)
def test_streams_of_steady_steps(emulated, capability):
    summary = self_check(emulated, DEVICES[capability], 1000 + list(DEVICES).index(capability), STREAMS)
    assert (summary["cases"], summary["equal"]) == (STREAMS, STREAMS)


@pytest.mark.parametrize("capability", ("8.0", "9.0"))
def test_whole_runs_from_an_empty_allocator(emulated, capability):
    """Streams and statistics equal, reserved bytes within one segment."""
    summary = self_check(emulated, DEVICES[capability], 2000, WHOLE_RUNS, "--whole")
    assert (summary["cases"], summary["equal"]) == (WHOLE_RUNS, WHOLE_RUNS)
