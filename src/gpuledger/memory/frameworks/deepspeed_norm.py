"""The norm of a gradient as DeepSpeed takes it: of a copy in fp64."""
from __future__ import annotations

from gpuledger.program.device import Device
from gpuledger.program.reductions import reduce_all
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..update_rules import Moves


def norm_in_double(elements: Size, device: Device) -> Moves:
    """All of it goes, but for a scalar that is left out. [D6]"""
    double, norm = Tensor("gradient in fp64", (elements,), "float64"), Tensor("norm", (), "float64")
    partial, semaphores = reduce_all(elements, device, 8)
    yield from (+double, +norm, +partial, +semaphores, -semaphores, -partial, -double, -norm)


def largest_and_smallest(gradient: Tensor, device: Device) -> Moves:
    """Looks for inf and NaN. Ref: deepspeed/runtime/utils.py has_inf_or_nan."""
    for name in ("largest", "smallest"):
        value = Tensor(f"{name} gradient", (), gradient.dtype)
        partial, semaphores = reduce_all(gradient.numel, device)
        yield from (+value, +partial, +semaphores, -semaphores, -partial, -value)
