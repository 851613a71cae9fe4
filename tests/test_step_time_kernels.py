"""Seconds of single operators, each worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuledger.compute.step_time.attention import attention_seconds, fused_seconds
from gpuledger.compute.step_time.gemm import linear_seconds, product_seconds, softened_waves
from gpuledger.compute.step_time.inputs import Product
from gpuledger.compute.step_time.layer import head_seconds, layer_seconds
from gpuledger.compute.step_time.local import Local
from gpuledger.compute.step_time.pointwise import (
    pointwise_seconds,
    quantised_bytes,
    stream_seconds,
    traffic_bytes,
)
from step_time_inputs import A100, GPT, layout, megatron


def test_a_full_last_wave_loses_nothing() -> None:
    assert softened_waves(216, 108, 0.7) == 2
    assert softened_waves(162, 108, 0.7) == pytest.approx(1.5 + 0.7 * 0.5)
    assert softened_waves(162, 108, 1.0) == 2
    assert softened_waves(162, 108, 0.0) == 1.5


def test_a_product_by_hand() -> None:
    """4096^3: 32 x 32 halves are 512 tiles, 4.741 waves of which 5 start; 268,435,456 FLOPs."""
    waves = 512 / 108 + 0.7 * (5 - 512 / 108)
    tile = 268_435_456 / (0.96 * 271.2e12 / 108) + 4.6e-6
    seconds = product_seconds(A100, 4096, 4096, 4096)
    assert seconds == pytest.approx(waves * tile + 3e-6, rel=1e-12)
    assert seconds == pytest.approx(573.7e-6, abs=0.1e-6)
    assert 2 * 4096**3 / seconds == pytest.approx(239.6e12, rel=1e-3)


def test_a_thin_product_is_bound_by_memory() -> None:
    """k = 64: (8192 x 64 + 64 x 8192 + 8192 x 8192) x 2 bytes at 1.8 TB/s."""
    moved = 2 * (2 * 8192 * 64 + 8192 * 8192)
    product = product_seconds(replace(A100, tile_seconds=0.0), 8192, 8192, 64)
    assert product == pytest.approx(moved / 1.8e12 + 3e-6, rel=1e-12)


def test_a_batch_of_products_fills_waves_together() -> None:
    one, many = (
        product_seconds(A100, 128, 128, 512),
        product_seconds(A100, 128, 128, 512, batch=216),
    )
    assert many < 3 * one  # 108 tiles fill exactly one wave; a single one is half a tile


def test_fp8_operands_are_one_byte_and_have_their_own_peak() -> None:
    eight = replace(A100, products=Product(624e12, 542.4e12, 1))
    assert product_seconds(eight, 8192, 8192, 8192) < 0.52 * product_seconds(A100, 8192, 8192, 8192)


def test_backward_of_a_linear_is_its_two_products() -> None:
    passes = linear_seconds(A100, 2048, 3072, 1024)
    assert passes.input_gradient == product_seconds(A100, 2048, 1024, 3072)
    assert passes.weight_gradient == product_seconds(A100, 1024, 3072, 2048)
    assert passes.backward == passes.input_gradient + passes.weight_gradient


def test_fused_attention_by_hand() -> None:
    """2 sequences, 16 heads of 128, 2048 tokens: 4 x 16 x 2048^2 / 2 x 128 FLOPs each."""
    flops = 2 * 17_179_869_184
    rate = 312e12 * 1024 / (1024 + 120)
    passes = fused_seconds(GPT, layout(), A100)
    assert passes.forward == pytest.approx(flops / (0.60 * rate) + 3e-6, rel=1e-12)
    assert passes.backward == pytest.approx(2.5 * flops / (0.55 * rate) + 6e-6, rel=1e-12)


def test_narrow_heads_and_windows() -> None:
    narrow = replace(GPT, num_heads=32, num_kv_heads=32, head_dim=64)
    same_flops = fused_seconds(GPT, layout(), A100).forward - 3e-6
    assert fused_seconds(narrow, layout(), A100).forward - 3e-6 == pytest.approx(
        same_flops * 2**0.5, rel=1e-12
    )
    windowed = replace(GPT, window=512, windowed_share=1.0)
    assert windowed.causal_pairs == 512 * 2048 - 512 * 512 / 2
    assert (
        replace(windowed, windowed_share=0.5).causal_pairs
        == (windowed.causal_pairs + GPT.causal_pairs) / 2
    )


def test_unfused_attention_pays_for_the_scores() -> None:
    plain = megatron(fused_attention=False)
    dropped = megatron(fused_attention=False, dropout=True)
    scores = 2 * 16 * 2048 * 2048
    extra = (
        attention_seconds(GPT, layout(), A100, dropped).forward
        - attention_seconds(GPT, layout(), A100, plain).forward
    )
    assert extra == pytest.approx(5 * scores / 1.8e12, rel=1e-9)


def test_megatrons_softmax_needs_a_multiple_of_4_heads() -> None:
    """16 heads over tp 8 and one sequence are 2: 33 and 35 bytes a score more, and 4 kernels."""
    kernel = megatron(fused_attention=False, fused_softmax=True)
    eager = megatron(fused_attention=False)
    for micro, falls_back in ((1, True), (2, False)):
        placed = layout(gpus=8, tp=8, micro_batch_size=micro)
        with_kernel = attention_seconds(GPT, placed, A100, kernel)
        without = attention_seconds(GPT, placed, A100, eager)
        scores = micro * 2 * 2048 * 2048
        more = [(b * scores / 1.8e12 + 4 * 3e-6) * falls_back for b in (33, 35)]
        assert with_kernel.forward - without.forward == pytest.approx(more[0], rel=1e-9)
        assert with_kernel.backward - without.backward == pytest.approx(more[1], rel=1e-9)
        assert layer_seconds(GPT, placed, A100, kernel).more_kernels == 4 * falls_back
    assert layer_seconds(GPT, layout(tp=8), A100, megatron(fused_softmax=True)).more_kernels == 0


def test_traffic_of_a_gpt_layer_by_hand() -> None:
    """Per token and hidden element: norms 8, residuals 12, activation 4 x 4, transposes 4 x 2."""
    local = Local.of(GPT, layout())
    assert traffic_bytes(GPT, layout(), local, megatron()) == 4096 * 2048 * (8 + 12 + 16 + 8)
    sharded = layout(tp=4, sequence_parallel=1)
    per_rank = traffic_bytes(GPT, sharded, Local.of(GPT, sharded), megatron())
    assert per_rank == 4096 * 2048 * (8 + 12 + 16 + 8) / 4
    unsharded = layout(tp=4)
    assert traffic_bytes(GPT, unsharded, Local.of(GPT, unsharded), megatron()) == (
        4096 * 2048 * (20 + 24 / 4)
    )


def test_fp8_quantises_the_inputs_of_four_products() -> None:
    forward, backward = quantised_bytes(GPT, Local.of(GPT, layout()), megatron(fp8=True))
    assert forward == 4 * 4096 * (2 * 2048 + 2048 + 8192)
    assert backward == 4 * 4096 * (2 * 2048 + 2048 + 2 * 2048 + 8192)
    assert quantised_bytes(GPT, Local.of(GPT, layout()), megatron()) == (0.0, 0.0)


def test_streams_scale_with_bandwidth() -> None:
    assert stream_seconds(A100, 1.8e12) == pytest.approx(1.0)
    assert stream_seconds(A100, 0, 5) == pytest.approx(15e-6)
    passes = pointwise_seconds(GPT, layout(), A100, megatron())
    assert passes.weight_gradient == 0
    assert passes.forward == pytest.approx(4096 * 2048 * 44 / 1.8e12 + 7 * 3e-6)
    assert passes.backward == pytest.approx(4096 * 2048 * 88 / 1.8e12 + 12 * 3e-6)


def test_the_head_is_a_product_three_times_and_passes_over_logits() -> None:
    product = linear_seconds(A100, 4096, 51200, 2048)
    traffic = 34 * 4096 * 51200 / 1.8e12 + 30 * 4096 * 2048 / 1.8e12 + 20 * 3e-6
    assert head_seconds(GPT, layout(), A100, megatron()) == pytest.approx(
        product.forward + product.backward + traffic, rel=1e-12
    )


def test_arrays_take_the_same_path() -> None:
    sizes = np.array([128, 1000, 4096, 8192])
    together = product_seconds(A100, sizes, 2 * sizes, 512)
    assert together.tolist() == [product_seconds(A100, int(s), 2 * int(s), 512) for s in sizes]
