"""A GPU that is not there: real PyTorch on a stand-in for the CUDA libraries.

Nothing here imports torch: the libraries are built and the environment is prepared for a *child*
process, because a preloaded library must be there before torch is.
"""
from __future__ import annotations

from gpuledger.torch_runs.emulated_gpu.build import build
from gpuledger.torch_runs.emulated_gpu.device import EmulatedDevice, device_from_gpu
from gpuledger.torch_runs.emulated_gpu.environment import emulated_environment

__all__ = ["EmulatedDevice", "build", "device_from_gpu", "emulated_environment"]
