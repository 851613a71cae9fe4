"""The device: what PyTorch's operators keep and what its kernels take depends on it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Device:
    """capability as (major, minor); num_sms streaming multiprocessors.

    kind: "cpu" is for what autograd keeps alone (see `measures.saved_bytes`): some of PyTorch's
    operators keep other tensors there. Scratch and the order of allocations are CUDA's.
    """

    capability: tuple[int, int] = (9, 0)
    num_sms: int = 132
    kind: Literal["cuda", "cpu"] = "cuda"

    @property
    def threads_per_sm(self) -> int:
        """Resident threads of a multiprocessor.

        Ref: CUDA C++ Programming Guide, technical specifications per compute capability.
        """
        if self.capability == (7, 5):
            return 1024
        return 1536 if self.small_shared_memory else 2048

    @property
    def small_shared_memory(self) -> bool:
        """The multiprocessors of 8.6, 8.9 and 12.x: 1536 threads, 99 KiB of shared memory per
        block."""
        return self.capability in ((8, 6), (8, 9)) or self.capability >= (12, 0)

    @property
    def cublas_workspace_bytes(self) -> int:
        """One per cuBLAS handle and stream, taken at the first product.

        Ref: ATen/cuda/CUDABlas.cpp getChosenWorkspaceSize: 32 MiB from capability 9.0 on; below it
        2 x 4096 KiB + 8 x 16 KiB (":4096:2:16:8").
        """
        return 33_554_432 if self.capability >= (9, 0) else 8_519_680
