"""What is emulated: one kind of GPU, as torch sees it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpuledger.errors import InputError


@dataclass(frozen=True)
class EmulatedDevice:
    """One GPU.

    ``total_bytes`` is what ``torch.cuda.mem_get_info()[1]`` says on a real card: less than the label.
    ``context_bytes`` is what a CUDA context takes of it; it lowers what the allocator can get.
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
            raise InputError(
                f"{self.name}: {self.num_sms} SMs, compute capability "
                f"{self.capability[0]}.{self.capability[1]}",
                hint="a GPU that PyTorch supports has at least one SM and capability 5.0",
            )


class GpuRecord(Protocol):
    """The fields of a GPU preset that emulation needs."""

    @property
    def name(self) -> str: ...
    @property
    def capability(self) -> str: ...
    @property
    def num_sms(self) -> int: ...
    @property
    def torch_visible_bytes(self) -> int: ...
    @property
    def context_bytes(self) -> int: ...


def device_from_gpu(gpu: GpuRecord) -> EmulatedDevice:
    """The device that a GPU preset describes. Raises InputError if it cannot be one."""
    major, _, minor = gpu.capability.partition(".")
    return EmulatedDevice(
        name=gpu.name,
        capability=(int(major), int(minor or 0)),
        num_sms=gpu.num_sms,
        total_bytes=gpu.torch_visible_bytes,
        context_bytes=gpu.context_bytes,
    )
