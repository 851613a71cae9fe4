"""Devices for the tests; their sizes are what torch reports on such cards."""
from __future__ import annotations

from gpuledger.torch_runs.emulated_gpu import EmulatedDevice

A100_80GB = EmulatedDevice("NVIDIA A100-SXM4-80GB", (8, 0), 108, 85_095_612_416)
H100_80GB = EmulatedDevice("NVIDIA H100 80GB HBM3", (9, 0), 132, 85_028_765_696)
T4_16GB = EmulatedDevice("Tesla T4", (7, 5), 40, 15_636_037_632)
