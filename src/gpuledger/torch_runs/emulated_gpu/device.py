"""What is emulated: one kind of GPU, as torch sees it."""
from __future__ import annotations

from dataclasses import dataclass

from ...config.cluster import Gpu
from ...errors import InputError


@dataclass(frozen=True)
class EmulatedDevice:
    """One GPU.

    ``total_bytes`` is what ``torch.cuda.mem_get_info()[1]`` says on a real card: less than its
    label. ``context_bytes`` is what a CUDA context takes of it; it lowers what the allocator can
    get.
    """

    name: str
    capability: tuple[int, int]
    num_sms: int
    total_bytes: int
    context_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.context_bytes < self.total_bytes:
            raise InputError(
                f"{self.name}: a context of {self.context_bytes} bytes on a device of "
                f"{self.total_bytes} bytes",
                hint="context_bytes must be at least 0 and less than total_bytes",
            )
        if self.num_sms < 1 or self.capability < (5, 0):
            major, minor = self.capability
            raise InputError(
                f"{self.name}: {self.num_sms} SMs, compute capability {major}.{minor}",
                hint="a GPU that PyTorch supports has at least one SM and capability 5.0",
            )


def device_from_gpu(gpu: Gpu) -> EmulatedDevice:
    """The device that a GPU preset describes.

    Raises InputError for a GPU that is not a CUDA device, or whose number of SMs is not known.

    Where a preset does not know the context's size it takes nothing here, and what the allocator
    can get is an upper bound.
    """
    if gpu.num_sms is None:
        raise InputError(
            f"{gpu.name}: its number of SMs is not known",
            hint="PyTorch sizes scratch buffers by it; name num_sms in the GPU's file",
        )
    if gpu.compute_capability is None:
        raise InputError(
            f"{gpu.name} ({gpu.vendor}) has no CUDA compute capability",
            hint="only CUDA GPUs can be emulated; `gpuledger presets gpus` lists them",
        )
    return EmulatedDevice(
        name=gpu.full_name,
        capability=gpu.compute_capability,
        num_sms=gpu.num_sms,
        total_bytes=gpu.capacity_bytes,
        context_bytes=gpu.context_bytes or 0,
    )
