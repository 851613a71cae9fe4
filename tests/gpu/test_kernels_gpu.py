"""The kernels on a GPU: equal to the plain loops, the same in every run, beyond 2^31 elements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch_cpu"))
from kernel_cases import Case, as_tuple, each_case, gradients_of, library  # noqa: E402

from gpuledger.torch_runs.kernels import adamw, dropout  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(scope="session")
def ops() -> Any:
    return library("cuda")


def results(ops: Any, case: Case, shape: tuple[int, int], dtype: Any, device: str) -> list[Any]:
    """Outputs and gradients, on the CPU."""
    inputs = [x.detach().to(device).requires_grad_() for x in case.inputs(*shape, dtype)]
    outputs = as_tuple(case.fused(ops, *inputs))
    return [x.detach().cpu() for x in (*outputs, *gradients_of(outputs, inputs))]


@each_case
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(7, 77), (33, 1024), (300, 4096)], ids=str)
def test_equal_to_the_plain_loops(ops: Any, case: Case, dtype: Any,
                                  shape: tuple[int, int]) -> None:
    on_gpu, on_cpu = (results(ops, case, shape, dtype, device) for device in ("cuda", "cpu"))
    for got, want in zip(on_gpu, on_cpu, strict=True):
        error = (got.double() - want.double()).norm()
        assert error <= TOLERANCE[dtype] * want.double().norm() + 1e-30


@each_case
def test_bitwise_the_same_in_every_run(ops: Any, case: Case) -> None:
    first, second = (results(ops, case, (300, 1024), torch.bfloat16, "cuda") for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_dropout_draws_the_same_mask_as_the_plain_loops(ops: Any) -> None:
    x = torch.randn(100_003)
    on_gpu = dropout.dropout(ops, x.cuda(), 0.3, 2**61 + 5)
    assert torch.equal(on_gpu.cpu(), dropout.dropout(ops, x, 0.3, 2**61 + 5))


def test_beyond_2_to_the_31_elements(ops: Any) -> None:
    count = 2**31 + 4099
    if torch.cuda.mem_get_info()[0] < 3 * 2 * count:
        pytest.skip("less than 13 GB of GPU memory free")
    x = torch.ones(count, dtype=torch.bfloat16, device="cuda")
    y = dropout.dropout(ops, x, 0.5, 1)
    assert y[-4099:].ne(0).any() and y[-4099:].eq(0).any()
    assert not torch.equal(y[2**31:2**31 + 4096], y[:4096])     # an index of 32 bits would wrap
    assert torch.equal(y, dropout.dropout(ops, x, 0.5, 1))
    wide = ops.bias_gelu(x, None, True)
    assert torch.equal(wide[-8:], wide[:8])


def test_adamw_over_many_tensors(ops: Any) -> None:
    sizes = [3, 70_000, 1, 0, 4096, 1 << 20] * 9
    start = [torch.randn(size) for size in sizes]
    updated = []
    for device in ("cuda", "cpu"):
        params = [torch.nn.Parameter(x.to(device)) for x in start]
        optimizer = adamw.FusedAdamW(params, ops, lr=1e-2)
        for param in params:
            param.grad = param.detach().sin()
        optimizer.step()
        updated.append([param.detach().cpu() for param in params])
    for got, want in zip(*updated, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)


def test_kernels_follow_the_current_stream(ops: Any) -> None:
    x = torch.randn(1 << 22, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = dropout.dropout(ops, dropout.dropout(ops, x, 0.5, 1), 0.5, 2)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(y, dropout.dropout(ops, dropout.dropout(ops, x, 0.5, 1), 0.5, 2))
