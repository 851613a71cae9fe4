"""Calibration's fits find the curves that made their samples, and a GPU file carries them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.cli.calibrate import gpu_yaml
from gpuledger.compute.step_time.attention import fused_seconds
from gpuledger.compute.step_time.fits import (
    AttentionSample,
    ProductSample,
    fit_attention,
    fit_products,
    shape_of,
    share_of,
)
from gpuledger.compute.step_time.gemm import product_seconds
from gpuledger.compute.step_time.inputs import AttentionRate
from gpuledger.config import RunOptions, load_gpu, resolve_run
from gpuledger.config.efficiency import AttentionCeiling, Efficiency
from gpuledger.errors import InputError
from step_time_inputs import A100

SHAPES = (
    (2048, 4096, 4096),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 28672, 4096),
    (1024, 8192, 8192),
    (16384, 6144, 2048),
    (2048, 16384, 1024),
    (8192, 1024, 8192),
)


def test_the_gemm_curve_is_found_again() -> None:
    truth = replace(A100, sustained_share=0.80, tile_seconds=3.0e-6, wave_quantisation=0.5)
    samples = [ProductSample(m, n, k, product_seconds(truth, m, n, k)) for m, n, k in SHAPES]
    fit = fit_products(samples, A100)
    fitted = replace(
        A100,
        sustained_share=fit.sustained_share,
        tile_seconds=fit.tile_seconds,
        wave_quantisation=fit.wave_quantisation,
        products=replace(A100.products, best_flops_per_second=fit.best_flops_per_second),
    )
    assert fit.best_flops_per_second == max(sample.flops_per_second for sample in samples)
    assert fit.mean_error < 0.02
    for m, n, k in ((3072, 5120, 4096), (8192, 4096, 14336)):  # shapes that the fit has not seen
        assert product_seconds(fitted, m, n, k) == pytest.approx(
            product_seconds(truth, m, n, k), rel=0.03
        )


def test_attention_ceilings_are_found_again() -> None:
    truth = replace(A100, attention=AttentionRate(0.42, 0.31))
    samples = []
    for length in (1024, 4096, 16384):
        for head_dim in (64, 128):
            blank = AttentionSample(2, 16, length, head_dim, 0.0, 0.0)
            passes = fused_seconds(*shape_of(blank), truth)
            samples.append(
                replace(blank, forward_seconds=passes.forward, backward_seconds=passes.backward)
            )
    rate = fit_attention(samples, A100)
    assert (rate.forward, rate.backward) == pytest.approx((0.42, 0.31), rel=1e-9)


def test_nothing_measured_is_no_curve() -> None:
    with pytest.raises(InputError, match="no matrix product was measured"):
        fit_products([], A100)
    with pytest.raises(InputError, match="no attention kernel was measured"):
        fit_attention([], A100)
    assert share_of(1.9e12, 2e12) == 0.95
    assert share_of(2.1e12, 2e12) == 1.0


def test_a_gpu_file_is_accepted_wherever_a_gpu_is(tmp_path: Path) -> None:
    measured = Efficiency(
        best_matmul_flops_per_second={"bf16": 612e12},
        sustained_share=0.97,
        host_seconds=6.2e-6,
        attention={"flash2": AttentionCeiling(forward=0.4, backward=0.35)},
        measured_on="NVIDIA H100 80GB HBM3",
        sources={"all": "gpuledger calibrate"},
    )
    gpu = load_gpu("h100-80gb-sxm").model_copy(update={"efficiency": measured})
    path = tmp_path / "mine.yaml"
    path.write_text(gpu_yaml(gpu))
    assert load_gpu(str(path)) == gpu
    run = resolve_run("llama-3-8b", RunOptions(gpu=str(path), gpus=8))[0]
    assert run.cluster.gpu.efficiency == measured
