"""FLOPs by part: pairs under the mask, windowed layers, and what recompute runs again."""
from __future__ import annotations

import pytest

import published_models as published
from gpuledger.compute.convention_formulas import CONVENTIONS, exact_pairs
from gpuledger.compute.conventions import (
    hardware_flops_per_sequence,
    model_flops_per_sequence,
    sequence_flops,
)
from gpuledger.compute.sequence_flops import full_layers, rerun_flops
from gpuledger.config.model import Model
from gpuledger.config.training import EveryK

# ---- windows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("s", "w"), [(1, 1), (7, 1), (7, 3), (7, 6), (7, 7), (7, 100)])
def test_pairs_under_the_mask_counted_one_by_one(s: int, w: int) -> None:
    assert exact_pairs(s, w) == sum(1 for i in range(s) for j in range(s) if i - w < j <= i)


@pytest.mark.parametrize("interval", [None, 1, 2, 3, 6, 7, 40])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 30])
@pytest.mark.parametrize("window", [None, 512])
def test_full_layers_counted_one_by_one(
        interval: int | None, step: int, window: int | None) -> None:
    model = published.llama_like(
        num_layers=26, hidden_size=64, num_heads=4, ffn_hidden_size=64, vocab_size=8,
        sliding_window=window, full_attention_interval=interval if window else None)
    one_by_one = sum(model.window(layer) is None for layer in range(0, 26, step))
    assert full_layers(model, step) == one_by_one


def test_a_billion_layers_take_no_time() -> None:
    huge: Model = published.MISTRAL_7B.model_copy(
        update={"num_layers": 10**9, "full_attention_interval": 6})
    assert full_layers(huge, 7) == sum(1 for i in range(0, 42, 7) if (i + 1) % 6 == 0) * (
        10**9 // 42) + sum(1 for i in range(10**9 // 42 * 42, 10**9, 7) if (i + 1) % 6 == 0)


def test_gemma2_windows() -> None:
    q, s, w = 8 * 256, 8192, 4096
    square, half, capped = s * s, s * s // 2, s * w
    seen = w * (w + 1) // 2 + (s - w) * w
    attention = {name: sequence_flops(published.GEMMA2_2B, s, name).attention
                 for name in CONVENTIONS}
    assert attention["exact"] == 13 * 12 * q * (s * (s + 1) // 2 + seen)
    assert attention["megatron"] == 13 * 12 * q * (half + seen)
    assert attention["torchtitan"] == attention["nanochat"] == 13 * 12 * q * (square + capped)
    assert attention["nanotron"] == attention["palm"] == 26 * 12 * q * square


def test_a_window_longer_than_the_sequence_changes_nothing() -> None:
    windowed = published.MISTRAL_7B
    plain = windowed.model_copy(update={"sliding_window": None})
    for name in CONVENTIONS:
        assert (model_flops_per_sequence(windowed, 4096, name)
                == model_flops_per_sequence(plain, 4096, name)), name


# ---- recompute ---------------------------------------------------------------------------------


def test_full_recompute_is_narayanans_formula() -> None:
    # 2104.04473 eq. 3: 96 B s L h^2 (1 + s/6h + V/16hL) counts forward, recompute and backward
    L, h, s, V = 96, 12288, 2048, 51200
    formula = 96 * s * L * h**2 + 16 * s**2 * L * h + 6 * s * V * h
    assert hardware_flops_per_sequence(published.GPT3_175B, s, "full", "nanotron") == formula


def test_selective_recompute_by_both_rules() -> None:
    L, h, s = 96, 12288, 2048
    model_flops = model_flops_per_sequence(published.GPT3_175B, s, "nanotron")
    again = hardware_flops_per_sequence(published.GPT3_175B, s, "selective", "nanotron")
    paper = hardware_flops_per_sequence(
        published.GPT3_175B, s, "selective", "nanotron", rule="paper")
    assert again - model_flops == 4 * L * s**2 * h
    assert paper - model_flops == 12 * L * s**2 * h


@pytest.mark.parametrize("convention", list(CONVENTIONS))
def test_recompute_in_every_convention(convention: str) -> None:
    model, s = published.GEMMA2_2B, 8192
    parts = sequence_flops(model, s, convention)
    full = rerun_flops(model, parts, "full")
    cores = rerun_flops(model, parts, "selective")
    assert full == model.num_layers * parts.block // 3 + cores
    passes = {"lingua": 3.5}.get(convention, 3)
    assert cores * passes == parts.attention
    assert rerun_flops(model, parts, "none") == 0
    assert rerun_flops(model, parts, EveryK(every=1)) == full
    # every second block from block 0 on: all of them windowed layers
    windowed = 13 * parts.block // 3 + int(13 * parts.windowed_core / passes)
    assert rerun_flops(model, parts, EveryK(every=2)) == windowed
    assert rerun_flops(model, parts, EveryK(every=100)) == (
        parts.block // 3 + int(parts.windowed_core / passes))


def test_model_flops_know_no_recompute() -> None:
    none = hardware_flops_per_sequence(published.LLAMA3_8B, 8192, "none")
    assert none == model_flops_per_sequence(published.LLAMA3_8B, 8192)
