"""Fused training kernels: built on demand from csrc/, bound to PyTorch's dispatcher.

    from gpuledger.torch_runs.kernels import load, norm
    ops = load("cuda")                      # or "cpu"; "host": the CUDA sources on the CPU
    y, h = norm.add_rms_norm(ops, x, residual, weight, eps)

`python -m gpuledger.torch_runs.kernels build cuda` builds ahead of time. docs/kernels.md says what
each operator computes, saves and allocates.
"""
from gpuledger.torch_runs.kernels.library import load

__all__ = ["load"]
