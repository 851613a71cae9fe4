"""The memory of the fused kernels, as CUDA, on the emulated GPU: PyTorch's own allocator."""
from __future__ import annotations

import pytest
from conftest import PROGRAMS, Emulated

from gpuledger.errors import InputError
from gpuledger.torch_runs.kernels import toolchain
from gpuledger.torch_runs.kernels.build import build

N, H, F, V = 8192, 4096, 14336, 128256


@pytest.fixture(scope="module")
def peaks(emulated: Emulated) -> dict[str, int]:
    try:
        toolchain.find_nvcc()
    except InputError as error:
        pytest.skip(f"no CUDA compiler: {error.problems[0].message}")
    build("cuda", ("90",))          # the emulated device's architecture
    found: dict[str, int] = emulated.run(PROGRAMS / "fused_kernels.py")
    return found


def test_the_loss_head_needs_what_the_formulas_say(peaks: dict[str, int]) -> None:
    gradients, chunk = 2 * (N + V) * H, 2 * 256 * V
    assert peaks["chunked"] == gradients + chunk + 4 * N + 8 + 4
    assert peaks["eager_float32"] == 12 * N * V + 4 + 4
    assert peaks["chunked"] * 10 <= peaks["eager_float32"]
    assert peaks["in_place"] < peaks["eager_bfloat16"] < peaks["eager_float32"]


def test_parts_allocate_what_the_formulas_say(peaks: dict[str, int]) -> None:
    assert peaks["norm_forward"] == 2 * 2 * N * H + 4 * N
    assert peaks["norm_backward"] == 2 * N * H + 2 * H + 4 * 256 * H
    assert peaks["mlp_forward"] == 2 * N * F + 2 * N * H
    assert peaks["adamw_first_step"] == 2 * 4 * H * H
    assert peaks["adamw_step"] == 0
