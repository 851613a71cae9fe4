"""Hugging Face `config.json`: each family's file gives the same model as our preset."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuledger.config import RunOptions, load_model, resolve_run
from gpuledger.errors import InputError, NotYetError
from gpuledger.formats.hf import FAMILIES, model_from_config

HF = Path(__file__).parent / "data" / "hf"
READ = sorted(path.stem for path in HF.glob("*.json")
              if not path.stem.startswith("other-") and path.stem != "opt-350m")


def config(name: str, **changes):
    """The keys of a fixture; a change to None removes the key."""
    keys = json.loads((HF / f"{name}.json").read_text()) | changes
    return {key: value for key, value in keys.items() if key not in changes or value is not None}


@pytest.mark.parametrize("name", READ)
def test_the_file_equals_our_preset(name):
    read, ours = load_model(HF / f"{name}.json"), load_model(name.removesuffix("-old-names"))
    assert read.model_copy(update={"name": ours.name}) == ours


def test_every_family_has_a_file():
    types = {json.loads((HF / f"{name}.json").read_text())["model_type"] for name in READ}
    assert set(FAMILIES) - types == {"gemma3_text", "stablelm_epoch"} - types


def test_a_file_without_model_type_is_known_by_its_architecture():
    keys = config("llama-3-8b", model_type=None)
    assert model_from_config(keys, "a file") == model_from_config(config("llama-3-8b"), "a file")


def test_missing_or_null_kv_heads_mean_one_per_query_head():
    assert load_model(config("llama-2-7b", num_key_value_heads=None)).num_kv_heads == 32
    null = config("llama-2-7b") | {"num_key_value_heads": None}
    assert load_model(null).num_kv_heads == 32


def test_mistral_without_kv_heads_has_the_default_of_its_class():
    assert load_model(config("mistral-7b-v0.1", num_key_value_heads=None)).num_kv_heads == 8
    assert load_model(config("mistral-7b-v0.1", sliding_window=None)).sliding_window == 4096


def test_head_dim_is_not_hidden_size_over_heads():
    assert load_model(config("qwen3-0.6b")).head_dim == 128
    assert load_model(config("gemma-2-2b")).head_dim == 256


def test_gelu_and_its_tanh_form_are_told_apart():
    assert load_model(config("gpt-neox-20b")).activation == "gelu_tanh"     # gelu_fast
    assert load_model(config("pythia-1.4b")).activation == "gelu"


def test_layer_types_of_newer_files():
    types = ["sliding_attention", "full_attention"] * 13
    new = load_model(config("gemma-2-2b", layer_types=types))
    assert (new.sliding_window, new.full_attention_interval) == (4096, 2)
    full = load_model(config("gemma-2-2b", layer_types=["full_attention"] * 26))
    assert full.sliding_window is None
    sliding = load_model(config("gemma-2-2b", layer_types=["sliding_attention"] * 26))
    assert (sliding.sliding_window, sliding.full_attention_interval) == (4096, None)


def test_qwen_slides_only_with_use_sliding_window():
    assert load_model(config("qwen2.5-7b")).sliding_window is None
    sliding = load_model(config("qwen2.5-7b", use_sliding_window=True, max_window_layers=0))
    assert sliding.sliding_window == 131072
    assert load_model(config("qwen2.5-7b", use_sliding_window=True)).sliding_window is None


def test_the_text_model_of_a_multimodal_file_is_named_so():
    assert load_model(HF / "gemma-3-4b.json").name == "gemma3 (text model)"


def test_partly_rotated_heads_of_newer_files():
    new = config("pythia-1.4b", rotary_pct=None, rope_parameters={"partial_rotary_factor": 0.25})
    assert load_model(new).rotary_dim == 32
    assert load_model(config("pythia-1.4b", rotary_pct=1.0)).rotary_dim is None


def test_llama_biases():
    model = load_model(config("llama-3-8b", attention_bias=True, mlp_bias=True))
    assert model.bias.query and model.bias.attention_out and model.bias.mlp_down
    assert not model.bias.norm


def test_sequential_neox():
    assert not load_model(config("pythia-1.4b", use_parallel_residual=False)).parallel_residual


@pytest.mark.parametrize("name", ["other-mixtral-8x7b", "other-deepseek-v3", "other-qwen3-30b-a3b"])
def test_experts_are_not_yet_read(name):
    with pytest.raises(NotYetError, match="mixture of experts"):
        load_model(HF / f"{name}.json")


@pytest.mark.parametrize(
    "name", ["t5-small", "bert-base", "mamba-130m", "whisper-tiny", "vit-base"])
def test_other_kinds_of_models_are_refused(name):
    with pytest.raises(InputError, match="not a decoder-only transformer") as error:
        load_model(HF / f"other-{name}.json")
    assert not isinstance(error.value, NotYetError)


def test_opt_350m_is_not_yet_read():
    with pytest.raises(NotYetError, match="word_embed_proj_dim = 512 differs from hidden_size"):
        load_model(HF / "opt-350m.json")


def test_a_file_is_accepted_wherever_a_model_is(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text((HF / "llama-3-8b.json").read_text())
    run = tmp_path / "run.yaml"
    run.write_text("model: model/config.json\ncluster: {gpu: h100, gpus: 8}\n")
    options = RunOptions(gpu="h100", gpus=8)
    models = [
        resolve_run(run)[0].model,
        resolve_run(tmp_path / "model" / "config.json", options)[0].model,
        resolve_run(tmp_path / "model", options)[0].model,
        resolve_run({"model": config("llama-3-8b")}, options)[0].model,
    ]
    assert {model.model_copy(update={"name": ""}) for model in models} == {
        load_model("llama-3-8b").model_copy(update={"name": ""})}
