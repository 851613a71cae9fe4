"""PyTorch on the CPU, the same on every CPU.

Where a CPU has bf16 instructions, oneDNN's kernels pack operands into buffers of their own, and its
gelu is NaN at infinity: both are oneDNN's, and neither CUDA's nor PyTorch's own kernels do so.
"""
import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")      # read when oneDNN is first used
