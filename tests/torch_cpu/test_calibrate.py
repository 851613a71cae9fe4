"""The pieces of calibrate that need no GPU: they run real PyTorch on the CPU, on sizes that take no
time."""

from __future__ import annotations

import pytest
import torch

from gpuledger.cli.main import status_of
from gpuledger.config import load_gpu
from gpuledger.torch_runs import calibrate, calibration
from gpuledger.torch_runs.clock import Clock

SMALL_LAYER = calibrate.LAYER.model_copy(
    update={
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "num_kv_heads": 2,
        "head_dim": 16,
        "ffn_hidden_size": 64,
        "vocab_size": 32,
    }
)


@pytest.fixture
def clock() -> Clock:
    return Clock("cpu")


@pytest.mark.parametrize("layout", calibrate.LAYOUTS)
def test_operands_are_what_their_layout_says(layout: str) -> None:
    a, b = calibrate.operands(6, 5, 4, layout, torch.float32, torch.device("cpu"))
    assert (a.shape, b.shape) == ((6, 4), (4, 5))
    assert a.is_contiguous() == (layout[0] == "n")
    assert b.is_contiguous() == (layout[1] == "n")


def test_the_chain_has_the_kernels_that_it_is_divided_by() -> None:
    """Operators of one more block, as PyTorch's profiler lists them; two of the norm's backward are
    one."""

    def operators(blocks: int) -> tuple[int, int]:
        chain = torch.nn.Sequential(*(calibrate.TinyBlock(8, "cpu") for _ in range(blocks)))
        x = torch.randn(4, 8, requires_grad=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            chain(x).sum().backward()
        names = [event.name for event in profile.events()]
        forward = sum(names.count(name) for name in ("aten::native_layer_norm", "aten::gelu"))
        backward = sum(
            names.count(name)
            for name in ("aten::native_layer_norm_backward", "aten::gelu_backward")
        )
        products = names.count("aten::mm")
        additions = names.count("aten::add") + names.count("aten::add_")
        return forward + backward, products + additions

    few, more = operators(1), operators(3)
    assert (more[0] - few[0]) / 2 == 4  # norm, GELU, and each one's backward
    assert (more[1] - few[1]) / 2 == 6 + 2  # six products, the residual, its gradients' sum
    assert calibrate.FORWARD_KERNELS + calibrate.BACKWARD_KERNELS == 4 + 6 + 2 + 1


def test_every_piece_measures_a_positive_time(clock: Clock) -> None:
    assert calibrate.host_seconds_per_kernel(clock, width=8) > 0
    [sample] = calibrate.products(clock, "bf16", 0.0, [(16, 8, 32)])
    assert (sample.m, sample.n, sample.k) == (16, 8, 32)
    assert sample.seconds > 0
    [core] = calibrate.attention(clock, "flash2", [32], [16])
    assert core.forward_seconds > 0
    assert core.backward_seconds > 0
    assert calibrate.copy_bytes_per_second(clock, 4096) > 0


def test_one_layer_beside_its_prediction(clock: Clock) -> None:
    result = calibration.Calibration(load_gpu("h100-80gb-sxm"))
    calibration.whole_layer(
        clock, result, calibration.Bench("cpu", layer=SMALL_LAYER, layer_tokens=16)
    )
    whole, rest = result.rows
    assert whole.assumed is not None
    assert rest.measured == pytest.approx(100 * (whole.measured - whole.assumed) / whole.measured)


def test_kernels_that_pytorch_lacks_are_named(clock: Clock) -> None:
    result = calibration.Calibration(load_gpu("h100-80gb-sxm"))
    bench = calibration.Bench("cpu", lengths=(16,), head_dims=(8,))
    device = calibration.device_of_gpu(result.gpu, "bf16", "flash2")
    assert list(calibration.attention_rates(clock, device, result, bench)) == ["flash2"]
    assert [line.split(":")[0] for line in result.not_measured] == [
        "attention efficient",
        "attention cudnn",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU to calibrate")
def test_without_a_gpu_the_status_is_2_and_says_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of(["calibrate"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: no GPU is visible to PyTorch")
    assert "\nhint: " in message
