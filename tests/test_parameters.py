"""Closed-form parameter counts: published totals, and what each field of `Model` adds."""
from __future__ import annotations

import pytest

import published_models as published
from gpuledger.compute.parameters import parameter_counts
from gpuledger.config.model import Model

TOTALS = {
    "GPT2": 124_439_808,
    "GPT2_MEDIUM": 354_823_168,
    "GPT2_LARGE": 774_030_080,
    "GPT2_XL": 1_557_611_200,
    "LLAMA2_7B": 6_738_415_616,
    "LLAMA3_8B": 8_030_261_248,
    "LLAMA3_70B": 70_553_706_496,
    "LLAMA31_405B": 405_853_388_800,
    "MISTRAL_7B": 7_241_732_096,
    "NEOX_20B": 20_554_567_680,
    # Each of the following has a field that the ones above do not have.
    "QWEN25_0_5B": 494_032_768,         # bias on query, key and value only; tied head
    "QWEN25_7B": 7_615_616_512,         # the same, untied
    "QWEN3_0_6B": 596_049_920,          # head_dim != h / a, norm per head
    "OLMO2_7B": 7_298_617_344,          # norms on the outputs, norm over the whole projection
    "GEMMA2_2B": 2_614_341_888,         # sandwich norms
    "GEMMA3_1B": 999_885_952,           # sandwich norms and norm per head, one key/value head
    "PHI3_MINI": 3_821_079_552,         # fused projections
    "TINYLLAMA": 1_100_048_384,
    "SMOLLM2_135M": 134_515_008,
    "PYTHIA_70M": 70_426_624,           # parallel residual with two norms
    "OPT_125M": 125_239_296,            # two more rows of positions
    "BLOOM_560M": 559_214_592,          # norm after the embedding, ALiBi
    "FALCON_7B": 6_921_720_704,         # multi-query, one shared norm with bias, no other bias
    "MPT_7B": 6_649_286_656,            # LayerNorm without bias
    "PHI2": 2_779_683_840,              # bias of the head, one shared norm
}


@pytest.mark.parametrize("name", TOTALS)
def test_published_totals(name: str) -> None:
    assert parameter_counts(getattr(published, name)).total == TOTALS[name]


def test_parts_of_gpt2_by_hand() -> None:
    counts = parameter_counts(published.GPT2)
    assert counts.token_embedding == 50257 * 768
    assert counts.position_embedding == 1024 * 768
    assert counts.block.attention_matrices == 4 * 768**2
    assert counts.block.mlp_matrices == 8 * 768**2
    assert counts.block.biases == (3 + 1 + 4 + 1) * 768
    assert counts.block.norms == 2 * 2 * 768
    assert counts.final_norm == 2 * 768
    assert counts.head == 0
    assert counts.non_embedding == 85_056_000
    assert counts.lookup_only == counts.position_embedding


def test_untied_embedding_is_only_looked_up() -> None:
    counts = parameter_counts(published.LLAMA3_8B)
    assert counts.head == counts.token_embedding == counts.lookup_only == 128_256 * 4096
    assert counts.non_embedding == 8_030_261_248 - 2 * 128_256 * 4096


FIELDS = [
    # what is changed in a small GPT-2 (h 64, a 4, d 16, f 256, V 100, 8 positions, 3 layers), and
    # the elements it adds
    ({"qkv_projection": "separate", "bias": {
        "query": False, "key_value": True, "attention_out": True, "mlp_up": True,
        "mlp_down": True, "norm": True}}, -3 * 64),
    ({"qkv_projection": "separate", "bias": {
        "query": True, "key_value": False, "attention_out": True, "mlp_up": True,
        "mlp_down": True, "norm": True}}, -3 * 2 * 64),
    ({"bias": {"query": True, "key_value": True, "attention_out": False, "mlp_up": True,
               "mlp_down": True, "norm": True}}, -3 * 64),
    ({"bias": {"query": True, "key_value": True, "attention_out": True, "mlp_up": False,
               "mlp_down": True, "norm": True}}, -3 * 256),
    ({"bias": {"query": True, "key_value": True, "attention_out": True, "mlp_up": True,
               "mlp_down": False, "norm": True}}, -3 * 64),
    ({"bias": {"query": True, "key_value": True, "attention_out": True, "mlp_up": True,
               "mlp_down": True, "norm": False}}, -(3 * 2 + 1) * 64),
    ({"bias": {"query": True, "key_value": True, "attention_out": True, "mlp_up": True,
               "mlp_down": True, "norm": True, "head": True}}, 100),
    ({"tie_embeddings": False}, 100 * 64),
    ({"positions": "rotary"}, -8 * 64),
    ({"positions": "alibi"}, -8 * 64),
    ({"positions": "none"}, -8 * 64),
    ({"learned_position_offset": 2}, 2 * 64),
    ({"embedding_norm": True}, 2 * 64),
    ({"norm_position": "post"}, 0),
    ({"norm_position": "sandwich"}, 3 * 2 * 2 * 64),
    ({"parallel_residual": True}, 0),
    ({"parallel_residual": True, "shared_norm": True}, -3 * 2 * 64),
    ({"qk_norm": "head"}, 3 * 2 * 2 * 16),
    ({"qk_norm": "full"}, 3 * 2 * (64 + 64)),
    ({"qk_norm": "full", "num_kv_heads": 1}, 3 * (2 * (64 + 16) - 2 * 48 * 64 - 2 * 48)),
    ({"head_dim": 32}, 3 * (4 * 64 * 64 + 3 * 64)),
    ({"activation": "swiglu"}, 3 * (64 * 256 + 256)),
    ({"activation": "geglu", "gate_up_projection": "fused"}, 3 * (64 * 256 + 256)),
    ({"norm": "rmsnorm", "bias": {
        "query": True, "key_value": True, "attention_out": True, "mlp_up": True,
        "mlp_down": True, "norm": False}}, -(3 * 2 + 1) * 64),
    ({"qkv_projection": "separate"}, 0),
    ({"sliding_window": 4}, 0),
]


@pytest.mark.parametrize(("fields", "added"), FIELDS, ids=lambda value: str(value))
def test_what_a_field_adds(fields: dict[str, object], added: int) -> None:
    small: dict[str, object] = {
        "num_layers": 3, "hidden_size": 64, "num_heads": 4, "vocab_size": 100,
        "max_position_embeddings": 8}
    changed: Model = published.gpt2_like(**{**small, **fields})
    before = parameter_counts(published.gpt2_like(**small)).total
    assert parameter_counts(changed).total - before == added
