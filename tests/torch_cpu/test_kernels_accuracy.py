"""Every kernel in every dtype against float64, and what happens to NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from kernel_cases import EPS, Case, as_tuple, each_case, gradients_of, ops, stored_as
from torch import Tensor

__all__ = ["ops"]

# Relative norm of the error, ||got - want|| / ||want||.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
SCALES: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"random": 1.0, "large": 1e4, "tiny": 1e-4, "denormal": 1e-40},
    torch.bfloat16: {"random": 1.0, "large": 1e4, "tiny": 1e-4, "denormal": 1e-40},
    torch.float16: {"random": 1.0, "large": 16.0, "tiny": 1e-3, "denormal": 1e-6},
}
each_input = pytest.mark.parametrize(
    ("dtype", "kind"), [(dtype, kind) for dtype in SCALES for kind in SCALES[dtype]],
    ids=lambda value: str(value).removeprefix("torch."))


def error_norms(got: Tensor, want: Tensor, growth: float) -> tuple[float, float]:
    """(norm of the error, norm that is allowed): tolerance, and one least number per element.

    growth: what a least number that was lost is multiplied by before it reaches the result.
    """
    info = torch.finfo(got.dtype)
    least = info.smallest_normal * info.eps
    norm = want.norm().item()
    allowed = TOLERANCE.get(got.dtype, TOLERANCE[torch.float32]) * norm
    return (got.double() - want).norm().item(), allowed + growth * least * math.sqrt(want.numel())


@each_case
@each_input
def test_outputs_and_gradients_against_float64(ops: Any, case: Case, dtype: torch.dtype,
                                               kind: str) -> None:
    inputs = case.inputs(6, 40, dtype, SCALES[dtype][kind])
    outputs = as_tuple(case.fused(ops, *inputs))
    wide_inputs = [x.detach().double().requires_grad_() for x in inputs]
    with stored_as(dtype):
        wide_outputs = as_tuple(case.reference(*wide_inputs))
        wanted = (*wide_outputs, *gradients_of(wide_outputs, wide_inputs))
    pairs = zip((*outputs, *gradients_of(outputs, inputs)), wanted, strict=True)
    for position, (got, want) in enumerate(pairs):
        error, allowed = error_norms(got, want, EPS**-0.5 if case.normalises else 1.0)
        assert error <= allowed, f"result {position}: error {error:.3g}, allowed {allowed:.3g}"


def marks(x: Tensor) -> Tensor:
    """0 for finite, 1 for NaN, 2 and 3 for the infinities."""
    return x.isnan() * 1 + x.isposinf() * 2 + x.isneginf() * 3


@each_case
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "minus_inf"])
def test_nan_and_infinity_spread_as_in_pytorch(ops: Any, case: Case, value: float) -> None:
    for spoiled in range(len(case.shapes(4, 16))):
        inputs = case.inputs(4, 16, torch.float32)
        with torch.no_grad():
            inputs[spoiled].view(-1)[1] = value
        outputs, wanted = as_tuple(case.fused(ops, *inputs)), as_tuple(case.reference(*inputs))
        pairs = zip((*outputs, *gradients_of(outputs, inputs)),
                    (*wanted, *gradients_of(wanted, inputs)), strict=True)
        for position, (got, want) in enumerate(pairs):
            where = f"input {spoiled}, result {position}"
            if case.centers and position >= len(outputs):
                # inf - inf: PyTorch's own kernels for CPU and CUDA disagree on inf or NaN here.
                assert torch.equal(got.isfinite(), want.isfinite()), where
            else:
                assert torch.equal(marks(got), marks(want)), where
