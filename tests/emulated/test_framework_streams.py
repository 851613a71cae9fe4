"""The frameworks' accounts against the frameworks, as one rank of N: streams and peaks of drawn runs.

`benchmarks/frameworks/campaign.py` runs the same comparison on several hundred configurations.
"""
from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from emulated_devices import A100_80GB, H100_80GB

CASES = {"ddp": 5, "zero-redundancy-optimizer": 4, "fsdp2": 8, "fsdp2-tp": 10, "fsdp1": 8}
DEEPSPEED_CASES = 14               # stages 0 to 3, some with offload


def summary_of(emulated, device, framework, first_seed, count):
    """The summary of a comparison, and what it says of the first few differences."""
    command = [sys.executable, "-m", "gpuledger.torch_runs.self_check.frameworks", framework,
               str(first_seed), str(count)]
    done = subprocess.run(command, env=emulated.environment(device=device, devices=8),
                          capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr[-6000:]
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr[-6000:]


def self_check(emulated, device, framework, first_seed, count):
    """Every stream and every peak is equal."""
    summary, differences = summary_of(emulated, device, framework, first_seed, count)
    assert summary["mismatches"] == [], differences
    assert summary["cases"] == summary["equal_streams"] == count
    assert summary["peaks"] == summary["equal_peaks"] > 0


@pytest.mark.parametrize("framework", CASES)
def test_streams_and_peaks(emulated, framework):
    self_check(emulated, H100_80GB, framework, 3000, CASES[framework])


def test_streams_of_data_parallel(emulated):
    """Not peaks: the threads of its forward passes take one cuBLAS workspace or two, as their timing has it."""
    summary, differences = summary_of(emulated, H100_80GB, "dataparallel", 3000, 5)
    assert summary["equal_streams"] == 5, differences


def test_forward_and_backward_of_tensor_parallelism_alone(emulated):
    """DTensor without a framework: no account of how its optimizer redistributes gradients."""
    summary, differences = summary_of(emulated, H100_80GB, "tensor-parallel", 3000, 5)
    assert summary["equal_streams"] == 5, differences


def test_context_and_tensor_parallelism_under_fsdp2(emulated):
    """Ring attention over ranks that are tp apart."""
    self_check(emulated, H100_80GB, "context-tp", 3000, 5)


def test_fsdp1_on_another_device(emulated):
    """Scratch of the norms depends on the number of SMs."""
    self_check(emulated, A100_80GB, "fsdp1", 3100, 4)


def test_streams_and_peaks_of_deepspeed(emulated):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("the package deepspeed is not installed: pip install deepspeed")
    self_check(emulated, H100_80GB, "deepspeed", 3000, DEEPSPEED_CASES)
