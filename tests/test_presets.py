"""Presets: complete, sourced, found by name, and with the published numbers of parameters."""
from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuledger.config import (
    Model,
    list_presets,
    load_cluster,
    load_gpu,
    load_model,
    resolve_run,
)
from gpuledger.config.presets import KINDS, aliases, read_preset, simplified
from gpuledger.errors import InputError

# Totals of the published checkpoints (safetensors metadata, model cards, papers).
PUBLISHED = {
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "nanogpt-gpt2-124m": 124_373_760,
    "opt-125m": 125_239_296, "opt-1.3b": 1_315_758_080, "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984, "opt-13b": 12_853_473_280, "opt-30b": 29_974_540_288,
    "bloom-560m": 559_214_592, "bloom-1b7": 1_722_408_960, "bloom-3b": 3_002_557_440,
    "bloom-7b1": 7_069_016_064, "bloom": 176_247_271_424,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-70m": 70_426_624, "pythia-160m": 162_322_944, "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632, "pythia-1.4b": 1_414_647_808, "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016, "pythia-12b": 11_846_072_320,
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800, "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096, "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264,
    "gemma-2b": 2_506_172_416, "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888, "gemma-2-9b": 9_241_705_984, "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "phi-1.5": 1_418_270_720, "phi-2": 2_779_683_840, "phi-3-mini-4k": 3_821_079_552,
    "phi-3-medium-4k": 13_960_238_080,
    "falcon-7b": 6_921_720_704, "falcon-rw-1b": 1_311_625_216,
    "mpt-7b": 6_649_286_656,
    "olmo-2-1b": 1_484_916_736, "olmo-2-7b": 7_298_617_344, "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008, "smollm2-360m": 361_821_120, "smollm2-1.7b": 1_711_376_384,
    "starcoderbase": 15_517_456_384, "stablelm-3b-4e1t": 2_795_443_200,
}

# Table 2.1 of the GPT-3 paper prints these totals, in units of 1e6 or 1e9.
GPT3_TABLE = {"gpt3-125m": (125, 6), "gpt3-760m": (760, 6), "gpt3-2.7b": (2.7, 9),
              "gpt3-6.7b": (6.7, 9), "gpt3-13b": (12.9, 9), "gpt3-175b": (174.6, 9)}


def parameters(model: Model) -> int:
    """The parameters of a decoder in closed form, independent of the step program."""
    h, f = model.hidden_size, model.ffn_hidden_size
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    bias, ups = model.bias, 2 if model.gated else 1
    norm = h * (2 if bias.norm else 1)
    attention = 2 * h * (q + kv) + q * bias.query + 2 * kv * bias.key_value + h * bias.attention_out
    mlp = (ups + 1) * h * f + ups * f * bias.mlp_up + h * bias.mlp_down
    norms = {"pre": 2, "post": 2, "sandwich": 4}[model.norm_position] - model.shared_norm
    qk_norm = {"none": 0, "head": 2 * model.head_dim, "full": q + kv}[model.qk_norm]
    block = attention + mlp + norms * norm + qk_norm
    table = model.max_position_embeddings + model.learned_position_offset
    positions = table * h if model.positions == "learned" else 0
    embeddings = model.vocab_size * h * (1 if model.tie_embeddings else 2) + positions
    return (model.num_layers * block + embeddings + norm * (2 if model.embedding_norm else 1)
            + model.vocab_size * bias.head)


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_parameters_equal_the_published_total(name, total):
    assert parameters(load_model(name)) == total


@pytest.mark.parametrize(("name", "printed"), GPT3_TABLE.items())
def test_gpt3_parameters_round_to_the_papers_table(name, printed):
    figure, power = printed
    digits = len(str(figure).partition(".")[2])
    total = parameters(load_model(name)) / 10**power
    # Half a unit of the last printed digit; the paper rounds 2.65 to 2.7 and 6.66 to 6.7.
    assert abs(total - figure) <= 0.5 * 10.0**-digits + 1e-9


@pytest.mark.parametrize(
    ("kind", "least"), [("models", 40), ("gpus", 25), ("clusters", 6), ("runs", 8)])
def test_there_are_enough(kind, least):
    assert len(list_presets(kind)) >= least


def test_every_family_of_the_plan_is_there():
    names = " ".join(list_presets("models"))
    families = (
        "gpt2 gpt3- opt- bloom gpt-neox pythia llama- llama-2 llama-3- llama-3.1 llama-3.2 mistral "
        "qwen2.5 qwen3 gemma-2 gemma-3 phi-3 falcon mpt olmo-2 nanogpt tinyllama smollm2")
    assert [family for family in families.split() if family not in names] == []
    assert sum(name.startswith("gpt3-") for name in list_presets("models")) == 8


def test_every_model_is_valid_and_says_where_it_is_from():
    for name in list_presets("models"):
        assert load_model(name).name == name
        assert read_preset("models", name)["source"].startswith("https://")


def test_every_gpu_is_valid_and_each_known_number_has_its_source():
    for name in list_presets("gpus"):
        gpu = load_gpu(name)
        numbers = gpu.model_dump(exclude={"name", "full_name", "vendor", "sources"})
        peaks = numbers.pop("dense_peak_flops_per_second")
        known = {key for key, value in numbers.items() if value is not None}
        if any(peaks.values()):
            known.add("dense_peak_flops_per_second")
        assert set(gpu.sources) == known, name


def test_dense_peaks_are_not_the_sparse_ones():
    assert load_gpu("h100-80gb-sxm").dense_peak_flops_per_second.bf16 == 989e12
    assert load_gpu("a100-80gb-sxm").dense_peak_flops_per_second.bf16 == 312e12
    assert load_gpu("l40s").dense_peak_flops_per_second.bf16 == 362e12
    assert load_gpu("v100-32gb-sxm").dense_peak_flops_per_second.bf16 is None


def test_capacity_is_what_pytorch_sees():
    assert load_gpu("h100-80gb-sxm").capacity_bytes == 81082 * 2**20
    assert load_gpu("h200").capacity_bytes == 143156 * 2**20
    assert load_gpu("h100-94gb-nvl").capacity_bytes == 94 * 2**30     # not known: the label


def test_every_cluster_is_valid():
    for name in list_presets("clusters"):
        assert load_cluster(name).source


def test_every_run_is_complete():
    for name in list_presets("runs"):
        run, assumptions = resolve_run(name)
        assert (run.name, assumptions) == (name, ())


def test_names_are_distinct_and_aliases_lead_somewhere():
    for kinds in (("models", "runs"), ("gpus",), ("clusters",)):
        names = [name for kind in kinds for name in (*list_presets(kind), *aliases(kind))]
        assert len({simplified(name) for name in names}) == len(names)
    for kind in KINDS:
        assert set(aliases(kind).values()) <= set(list_presets(kind))


@pytest.mark.parametrize("name", ["gpt2-xl", "GPT2_XL", "gpt2xl", "gpt2-1558m"])
def test_names_are_found_however_they_are_written(name):
    assert load_model(name).name == "gpt2-xl"


def test_an_unknown_gpu_is_never_guessed():
    with pytest.raises(InputError) as error:
        load_gpu("h100-81gb")
    assert error.value.problems[0].message == "unknown GPU 'h100-81gb'"
    assert error.value.problems[0].hint.startswith("did you mean h100-80gb")


def test_the_wheel_carries_the_presets(tmp_path):
    """Built and unpacked elsewhere, the package finds its presets."""
    root = Path(__file__).parents[1]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    program = ("from gpuledger.config.presets import presets_folder; "
               "from gpuledger.config import load_model; "
               "print(presets_folder(), load_model('gpt2').num_layers)")
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split() == [str(tmp_path / "site" / "gpuledger" / "_presets"), "12"]
