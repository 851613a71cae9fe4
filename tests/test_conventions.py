"""Conventions: integers from other frameworks' own functions, published figures, peers' defects."""
from __future__ import annotations

from pathlib import Path

import pytest

import published_models as published
from gpuledger.compute import conventions_table
from gpuledger.compute.convention_formulas import CONVENTIONS
from gpuledger.compute.conventions import (
    DEFAULT_CONVENTION,
    find_convention,
    model_flops_by_convention,
    model_flops_per_sequence,
    model_flops_per_step,
    model_flops_per_token,
    sequence_flops,
)
from gpuledger.config.training import Training
from gpuledger.errors import InputError

CASES = {
    "GPT-2 124M, 1K": (published.GPT2, 1024),
    "Llama-3-8B, 8K": (published.LLAMA3_8B, 8192),
    "Llama-3-8B, 128K": (published.LLAMA3_8B, 131072),
    "Llama-3-405B, 8K": (published.LLAMA31_405B, 8192),
    "Qwen3-0.6B, 4K": (published.QWEN3_0_6B, 4096),
}

# ---- totals ------------------------------------------------------------------------------------


def test_llama3_8b_per_token_is_megatrons() -> None:
    # Megatron-LM's, NeMo's and nanotron's own functions, executed: 51.470, 51.470, 57.913 GFLOP.
    assert model_flops_per_token(published.LLAMA3_8B, 8192) == 51_470_401_536
    assert model_flops_per_token(published.LLAMA3_8B, 8192, "nanotron") == 57_912_852_480
    assert model_flops_per_token(published.LLAMA3_8B, 8192, "exact") == 51_471_187_968


def test_gpt3_175b_one_sequence() -> None:
    causal = model_flops_per_sequence(published.GPT3_175B, 2048)
    square = model_flops_per_sequence(published.GPT3_175B, 2048, "nanotron")
    assert causal == 2_174_868_359_479_296
    assert square == 2_204_555_173_429_248
    # Narayanan's and Korthikanti's closed form 72 L s h^2 (1 + s/6h + V/12hL), in integers
    L, h, s, V = 96, 12288, 2048, 51200
    assert square == 72 * L * s * h**2 + 12 * L * s**2 * h + 6 * s * V * h


def test_exact_count_of_each_case() -> None:
    per_token = [model_flops_per_sequence(model, s, "exact") / s / 1e9
                 for model, s in CASES.values()]
    assert [round(flops, 3) for flops in per_token] == [0.798, 51.471, 148.108, 2523.968, 4.986]


RATIOS = {
    # one column per entry of CASES
    "six_n": (0.94, 0.94, 0.33, 0.96, 0.72),
    "nanogpt": (1.07, 1.19, 1.72, 1.05, 1.28),
    "palm": (1.08, 1.19, 1.72, 1.05, 1.28),
    "llm_c": (1.01, 1.06, 1.02, 1.01, 0.86),
    "nanochat": (1.07, 1.13, 1.70, 1.04, 1.28),
    "torchtitan": (1.07, 1.13, 1.70, 1.04, 1.28),
    "nanotron": (1.07, 1.13, 1.70, 1.04, 1.28),
    "llm_foundry": (1.08, 1.13, 1.70, 1.04, 1.00),
    "picotron": (1.08, 1.19, 1.72, 1.05, 1.00),
    "lingua": (0.73, 1.02, 1.12, 1.01, 0.69),
    "verl": (1.29, 1.06, 1.02, 1.00, 1.19),
    "megatron": (1.00, 1.00, 1.00, 1.00, 1.00),
}


@pytest.mark.parametrize("convention", RATIOS)
def test_ratio_to_the_exact_count(convention: str) -> None:
    ratios = tuple(
        round(model_flops_per_sequence(model, s, convention)
              / model_flops_per_sequence(model, s, "exact"), 2)
        for model, s in CASES.values())
    assert ratios == RATIOS[convention]


def test_per_step_is_per_sequence_times_global_batch() -> None:
    training = Training(
        seq_len=2048, micro_batch_size=1, global_batch_size=64, precision="bf16-mixed",
        optimizer="adamw", attention="flash", recompute="none", loss="cross_entropy")
    assert model_flops_per_step(published.GPT3_175B, training) == 64 * 2_174_868_359_479_296


def test_counts_are_integers_and_parts_add_up() -> None:
    for model, s in CASES.values():
        for name, total in model_flops_by_convention(model, s).items():
            parts = sequence_flops(model, s, name)
            assert type(total) is int
            assert total == (model.num_layers * parts.block + parts.attention
                             + parts.vocabulary)


# ---- one convention at a time ------------------------------------------------------------------

TABLE_A4 = [
    # d_model, heads, layers, FLOPs: nanoGPT's scaling_laws.ipynb, cell chinchilla_flops
    (640, 10, 10, 929_877_196_800),
    (1024, 16, 20, 4_135_248_199_680),
    (1280, 10, 24, 7_353_453_772_800),
    (1792, 14, 26, 14_670_316_437_504),
    (2048, 16, 28, 20_220_437_594_112),
    (3584, 28, 40, 83_021_046_743_040),
]


@pytest.mark.parametrize(("h", "a", "L", "flops"), TABLE_A4)
def test_chinchilla_without_vocabulary_is_table_a4(h: int, a: int, L: int, flops: int) -> None:
    model = published.gpt2_like(num_layers=L, hidden_size=h, num_heads=a, vocab_size=32000,
                                max_position_embeddings=2048)
    parts = sequence_flops(model, 2048, "chinchilla")
    assert parts.total - parts.vocabulary == flops
    assert parts.vocabulary == 12 * 2048 * 32000 * h


def test_nanogpt_by_hand() -> None:
    # 6 N + 12 L H Q T with N = 123,653,376, as its README's model without positions
    per_token = 6 * 123_653_376 + 12 * 12 * 768 * 1024
    assert model_flops_per_token(published.GPT2, 1024, "nanogpt") == per_token


def test_llm_c_by_hand() -> None:
    per_token = 6 * 124_439_808 + 6 * 12 * 768 * 1024
    assert model_flops_per_token(published.GPT2, 1024, "llm_c") == per_token


def test_lingua_loses_a_tied_head() -> None:
    per_token = 6 * (124_439_808 - 50257 * 768) + 7 * 12 * 768 * 1024
    assert model_flops_per_token(published.GPT2, 1024, "lingua") == per_token


def test_kaplan_counts_no_vocabulary() -> None:
    per_token = 6 * 85_056_000 + 6 * 12 * 768 * 1024
    assert model_flops_per_token(published.GPT2, 1024, "kaplan") == per_token


def test_llm_foundry_takes_off_an_untied_embedding_only() -> None:
    attention = 12 * 32 * 4096 * 8192
    untied = 6 * (8_030_261_248 - 128_256 * 4096) + attention
    assert model_flops_per_token(published.LLAMA3_8B, 8192, "llm_foundry") == untied
    tied = 6 * 124_439_808 + 12 * 12 * 768 * 1024
    assert model_flops_per_token(published.GPT2, 1024, "llm_foundry") == tied


MAXTEXT = [
    # Llama-2-7B, 4 sequences a device: tokens, TFLOP before and after the attention was halved,
    # and the learnable weights' share of both (MaxText pull request 1988)
    (8192, 1721.22, 1510.11, 1299.00),
    (129_024, 125_194.40, 72_826.86, 20_459.32),
]


@pytest.mark.parametrize(("s", "before", "after", "weights"), MAXTEXT)
def test_maxtext_before_and_after_halving(
        s: int, before: float, after: float, weights: float) -> None:
    square = sequence_flops(published.LLAMA2_7B, s, "nanotron")
    half = sequence_flops(published.LLAMA2_7B, s, "megatron")
    assert round(4 * square.total / 1e12, 2) == before
    assert round(4 * half.total / 1e12, 2) == after
    assert round(4 * (square.total - square.attention) / 1e12, 2) == weights


def test_batch_of_gpt2_as_the_traced_count() -> None:
    # torch's FlopCounterMode on 12 sequences of GPT-2: 10.4993 TFLOP; the full square
    flops = 12 * model_flops_per_sequence(published.GPT2, 1024, "nanotron")
    assert round(flops / 1e12, 4) == 10.4993


# ---- what other tools get wrong on dense models ------------------------------------------------


def test_the_ffn_width_counts() -> None:
    # A calculator that parses --ffn-hidden-size and never uses it prints 238.6 TFLOP here.
    square = model_flops_per_sequence(published.LLAMA2_7B, 4096, "nanotron")
    half = model_flops_per_sequence(published.LLAMA2_7B, 4096)
    assert (round(square / 1e12, 2), round(half / 1e12, 2)) == (188.76, 175.57)


def test_attention_is_not_lost_with_a_fused_kernel() -> None:
    # A counter that skips scaled_dot_product_attention prints 162.4 TFLOP for this sequence.
    parts = sequence_flops(published.LLAMA2_7B, 4096, "nanotron")
    assert round((parts.total - parts.attention) / 1e12, 1) == 162.4
    assert parts.attention == 12 * 32 * 4096 * 4096 * 4096


def test_vocabulary_is_counted_forward_and_backward() -> None:
    # One calculator adds the head's forward pass only, another counts it without its backward.
    assert sequence_flops(published.LLAMA3_8B, 8192).vocabulary == 3 * 2 * 8192 * 4096 * 128256


def test_the_gate_counts() -> None:
    # A formula with the gate factor fixed at 1 gives 40.2 GFLOP for Llama-3-8B at 8K, not 51.5.
    ungated = published.LLAMA3_8B.model_copy(update={"activation": "gelu"})
    assert round(model_flops_per_token(ungated, 8192) / 1e9, 1) == 40.2


def test_head_dim_is_not_hidden_size_over_heads() -> None:
    # Qwen3-0.6B: q = 2 h. With q = h the projections and the core would be half as large.
    q, kv, h, f = 2048, 1024, 1024, 3072
    parts = sequence_flops(published.QWEN3_0_6B, 4096)
    assert parts.block == 6 * 4096 * (h * (2 * q + 2 * kv) + 3 * h * f)
    assert parts.core == 6 * q * 4096**2


# ---- names and docs ----------------------------------------------------------------------------


def test_the_default_is_megatron() -> None:
    assert DEFAULT_CONVENTION == "megatron"
    assert find_convention("megatron").flops is CONVENTIONS["megatron"].flops


def test_conventions_are_found_as_their_projects_write_them() -> None:
    assert find_convention("llm-foundry").name == "llm_foundry"
    assert find_convention("llm.c").name == "llm_c"
    assert find_convention("nanoGPT").name == "nanogpt"


def test_an_unknown_convention_names_the_nearest() -> None:
    with pytest.raises(InputError) as error:
        model_flops_per_token(published.GPT2, 1024, "megatorn")
    assert "there is no FLOPs convention 'megatorn'" in str(error.value)
    assert "megatron" in error.value.problems[0].hint


@pytest.mark.parametrize("seq_len", [0, -1])
def test_a_sequence_without_tokens(seq_len: int) -> None:
    with pytest.raises(InputError, match="has no FLOPs"):
        sequence_flops(published.GPT2, seq_len)


def test_the_tables_of_the_docs_are_up_to_date() -> None:
    page = (Path(__file__).parent.parent / "docs" / "conventions.md").read_text()
    cases = [(label, *case) for label, case in CASES.items()]
    assert conventions_table.formula_table() in page, "run docs/update_conventions.py"
    assert conventions_table.comparison_table(cases) in page, "run docs/update_conventions.py"
