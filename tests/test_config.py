"""Records, and how names, files and options become a run."""
from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys

import pytest
from pydantic import ValidationError

from gpuledger.config import (
    EveryK,
    Model,
    Parallelism,
    Record,
    Run,
    RunOptions,
    Training,
    cautions,
    load_model,
    load_run,
    resolve_run,
)
from gpuledger.config.options import SHORT_OPTIONS, full_key
from gpuledger.config.problems import MAX_PROBLEMS, nearest, validated
from gpuledger.errors import InputError
from malformed_inputs import RUN, edited

ONE_H100 = RunOptions(gpu="h100", gpus=1)


def messages(action, *arguments) -> list[str]:
    """What an action refuses."""
    with pytest.raises(InputError) as error:
        action(*arguments)
    return [problem.message for problem in error.value.problems]


def test_records_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        load_model("gpt2").num_layers = 3
    with pytest.raises(ValidationError, match="frozen"):
        del load_model("gpt2").num_layers


def test_records_compare_copy_and_pickle_by_value():
    run = load_run("llama-3-8b-h100x8")
    assert pickle.loads(pickle.dumps(run)) == run == copy.deepcopy(run)
    other = run.model.model_copy(update={"num_layers": 3})
    assert (other.num_layers, run.model.num_layers, other == run.model) == (3, 32, False)
    assert len({run.model, other, load_model("llama-3-8b")}) == 2
    assert Run.model_validate_json(run.model_dump_json()) == run
    assert repr(EveryK(every=2)) == "EveryK(every=2)"
    assert run.training.model_dump(exclude={"loss"}, exclude_defaults=True) == {
        "seq_len": 8192, "micro_batch_size": 1, "global_batch_size": 128,
        "precision": "bf16-master", "optimizer": "adamw", "attention": "flash", "recompute": "full"}


def test_every_field_says_what_it_is():
    def undescribed(kind: type[Record]):
        for name, field in kind.model_fields.items():
            if not field.description:
                yield f"{kind.__name__}.{name}"
            if isinstance(field.annotation, type) and issubclass(field.annotation, Record):
                yield from undescribed(field.annotation)

    assert list(undescribed(Run)) == []


def test_a_cross_field_problem_is_a_validation_error_in_python_too():
    with pytest.raises(ValidationError, match="is not a multiple of num_kv_heads = 3"):
        Model(**RUN["model"] | {"num_kv_heads": 3})


def test_bias_in_one_word():
    gpt2, llama = load_model("gpt2").bias, load_model("llama-3-8b").bias
    assert (gpt2.query, gpt2.norm, gpt2.head) == (True, True, False)
    assert (llama.query, llama.norm, llama.head) == (False, False, False)
    rmsnorm = Model(**RUN["model"] | {"norm": "rmsnorm", "bias": True})
    assert (rmsnorm.bias.query, rmsnorm.bias.norm) == (True, False)


def test_windows_of_gemma():
    gemma_2, gemma_3 = load_model("gemma-2-2b"), load_model("gemma-3-1b")
    assert [gemma_2.window(layer) for layer in range(4)] == [4096, None, 4096, None]
    assert [gemma_3.window(layer) for layer in range(7)] == [512] * 5 + [None, 512]


@pytest.mark.parametrize(("optimizer", "implementation"), [
    ("adamw", "foreach"), ("adafactor", "foreach"), ("lion", "for-loop"),
    ("adamw-8bit", "for-loop")])
def test_an_optimizer_left_alone_runs_as_it_can(optimizer, implementation):
    training = Training(**RUN["training"] | {"optimizer": optimizer})
    assert training.optimizer_implementation == implementation


def test_a_wrong_recompute_is_one_problem():
    step = RUN["training"] | {"recompute": {"every": 0}}
    assert messages(validated, Training, step) == ["recompute.every = 0 must be greater than 0"]
    assert messages(validated, Training, step | {"recompute": 3}) == ["recompute = 3 is not known"]


def test_too_many_problems_end_in_one_line():
    found = messages(validated, Parallelism, {f"key{n}": n for n in range(100)})
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == "more than 20 problems"


def test_nearest_prefers_the_same_start():
    assert nearest("h100-81gb", ["v100-16gb", "h100-80gb-sxm"])[0] == "h100-80gb-sxm"
    assert nearest("zzz", ["gpt2"]) == []


def test_a_model_alone_becomes_a_run_with_what_was_assumed():
    run, assumptions = resolve_run("gpt2", RunOptions(gpu="h100", gpus=8))
    assert (run.name, run.parallel.dp, run.num_microbatches) == ("gpt2", 8, 1)
    assert assumptions == (
        "zero_stage = 0 (each data-parallel rank keeps all states)",
        "seq_len = 1024 (the model's max_position_embeddings)",
        "micro_batch_size = 1",
        "global_batch_size = 8 (micro_batch_size x dp = 1 x 8)",
        "precision = bf16-mixed (autocast over fp32 weights)",
        "optimizer = adamw",
        "attention = flash",
        "recompute = none",
        "loss = cross_entropy",
    )


def test_what_is_said_is_not_assumed():
    options = RunOptions(
        gpu="h100", gpus=8, zero=3, precision="bf16", seq_len=512, micro_batch=4, global_batch=64,
        recompute="every:2", set=("optimizer=sgd", "attention=math", "loss=chunked"))
    run, assumptions = resolve_run("gpt2", options)
    assert assumptions == ()
    assert (run.training.seq_len, run.parallel.zero_stage, run.num_microbatches) == (512, 3, 2)
    assert run.training.recompute == EveryK(every=2)


@pytest.mark.parametrize(("model", "options", "attention"), [
    ("gpt2", {}, "flash"),
    ("gpt2", {"precision": "fp32"}, "efficient (flash computes in 16 bit only)"),
    ("gpt2", {"gpu": "t4"}, "efficient (flash needs compute capability 8.0)"),
    ("mpt-7b", {}, "efficient (flash takes no ALiBi bias)"),
    ("gemma-2-2b", {}, "eager (attention_softcap is in no fused kernel)"),
])
def test_the_attention_that_is_assumed_exists(model, options, attention):
    _, assumptions = resolve_run(model, RunOptions(**{"gpu": "h100", "gpus": 1} | options))
    assert f"attention = {attention}" in assumptions


def test_gpu_and_number_of_gpus_are_never_assumed():
    assert messages(resolve_run, "gpt2") == ["cluster.gpu is missing", "cluster.gpus is missing"]


def test_dp_is_what_the_other_axes_leave():
    run = load_run(edited(RUN, {"parallel.tp": 2, "cluster.gpus": 16}))
    assert run.parallel.dp == 8


def test_a_larger_cluster_moves_dp_even_if_the_file_names_it():
    named = edited(RUN, {"parallel.dp": 8, "training.global_batch_size": 32})
    assert resolve_run(named, RunOptions(gpus=16))[0].parallel.dp == 16
    assert messages(resolve_run, named, RunOptions(gpus=16, set=("dp=8",))) == [
        "dp * tp * pp * cp = 8 * 1 * 1 * 1 = 8, but the cluster has 16 GPUs"]


def test_options_reach_below_a_preset():
    options = RunOptions(gpu="h100", gpus=1, set=(
        "hidden_size=1024", "model.bias.query=false", "model.bias.key_value=false",
        "cluster.gpu.torch_visible_bytes=1000", "name=mine"))
    run, _ = resolve_run("gpt2", options)
    assert (run.model.hidden_size, run.model.num_layers, run.name) == (1024, 12, "mine")
    assert (run.model.bias.query, run.model.bias.mlp_up) == (False, True)
    assert run.cluster.gpu.capacity_bytes == 1000


def test_options_replace_a_preset():
    run, _ = resolve_run("gpt2-a100", RunOptions(gpu="h200", set=("model=gpt2-xl",)))
    assert (run.model.name, run.cluster.gpu.name) == ("gpt2-xl", "h200-141gb-sxm")


def test_a_cluster_preset_takes_other_numbers_of_gpus():
    run, _ = resolve_run("llama-3-8b-h100x8", RunOptions(gpus=32))
    assert (run.cluster.name, run.cluster.num_nodes, run.parallel.dp) == ("dgx-h100", 4, 32)


def test_a_resolved_run_reads_back_equal():
    for name in ("llama-3-8b-h100x8", "gpt3-175b-a100x1024", "qwen2.5-0.5b-t4"):
        run = load_run(name)
        assert resolve_run(json.loads(run.model_dump_json())) == (run, ())


def test_paths_in_a_run_file_start_from_its_folder(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "model.json").write_text(json.dumps(RUN["model"]))
    (tmp_path / "runs" / "run.yaml").write_text(
        "model: model.json\ncluster: {gpu: h100, gpus: 1}\n")
    monkeypatch.chdir(tmp_path)
    assert load_run("runs/run.yaml").model.hidden_size == 64


def test_a_preset_wins_over_a_file_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").write_text(json.dumps({"model": RUN["model"]}))
    assert resolve_run("gpt2", ONE_H100)[0].model.num_layers == 12
    assert resolve_run("./gpt2", ONE_H100)[0].model.num_layers == 2


def test_the_callers_keys_stay_as_they_are():
    keys = edited(RUN, {})
    resolve_run(keys, RunOptions(gpus=16, set=("hidden_size=128", "global_batch_size=32")))
    assert keys == edited(RUN, {})


def test_short_keys_find_their_part():
    assert full_key("loss") == "training.loss"
    assert full_key("gpu") == "cluster.gpu"
    assert full_key("recompute.every") == "training.recompute.every"
    assert full_key("model.name") == "model.name"


def test_each_short_option_is_a_key_of_a_run():
    run = load_run("llama-3-8b-h100x8").model_dump()
    for path in SHORT_OPTIONS.values():
        part, key = path.split(".")
        assert key in run[part]


def test_a_long_sequence_is_a_caution_with_rotary_positions():
    run, _ = resolve_run("llama-2-7b", RunOptions(gpu="h100", gpus=1, seq_len=8192))
    assert cautions(run) == (
        "seq_len = 8192 is longer than max_position_embeddings = 4096 of llama-2-7b",)


def test_bf16_on_an_old_card_is_a_caution():
    run, _ = resolve_run("gpt2", RunOptions(gpu="t4", gpus=1, precision="bf16-mixed"))
    assert "bf16" in cautions(run)[0]


def test_tensor_parallelism_over_nodes_is_a_caution():
    run = load_run(edited(RUN, {"parallel.tp": 16, "cluster.gpus": 16}))
    assert "tp = 16 reaches beyond the 8 GPUs of a node" in cautions(run)[0]


def test_importing_the_records_is_cheap():
    heavy = {"torch", "numpy", "matplotlib", "yaml", "difflib", "typer"}
    program = f"import sys, gpuledger.config; print(sorted({heavy!r} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
