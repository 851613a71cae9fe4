"""What a launcher's own file says is the run, or the run is refused."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.compute.step_time.of_run import step_time
from gpuledger.config import Run
from gpuledger.errors import GpuledgerError, InputError
from gpuledger.estimate import estimate
from gpuledger.formats.megatron import parse_command, run_keys_of
from gpuledger.memory.pipeline.stages import model_parts
from gpuledger.planner.requests import RequestOptions, resources
from gpuledger.planner.requests.deepspeed import ds_config
from gpuledger.planner.requests.launchers import LAUNCHERS, environment
from gpuledger.planner.requests.megatron import megatron_words
from gpuledger.planner.requests.torchtitan import job_config
from request_runs import HOSTILE, calls, files_of, run_of

try:
    import tomllib
except ModuleNotFoundError:                                   # Python 3.10
    tomllib = None

DATA = Path(__file__).parent / "data" / "requests"
DIVIDED: dict[str, Any] = {"tp": 2, "pp": 2, "sequence_parallel": True, "zero_stage": 1}
MEGATRON: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama-3-8b", {}, DIVIDED),
    ("llama-3-8b", {"recompute": "selective", "gradient_clipping": True}, DIVIDED | {"vpp": 2}),
    ("llama-3-8b", {"recompute": "none"}, {"tp": 2, "pp": 4, "stage_layers": [7, 9, 9, 7]}),
    ("llama-3-8b", {}, {"tp": 2, "pp": 2, "vpp": 17, "sequence_parallel": True, "megatron": {
        "account_for_embedding": True, "account_for_loss": True}}),
    ("llama-3-8b", {"attention": "eager", "recompute": "none"}, {"megatron": {
        "transformer_impl": "local", "params_dtype": "float16", "softmax_in_float32": True}}),
    ("llama-3-8b", {"attention": "cudnn"}, {"tp": 2, "cp": 2, "sequence_parallel": True}),
    ("gpt3-13b", {"seq_len": 2048}, {"tp": 4, "megatron": {
        "overlap_grad_reduce": True, "make_vocab_size_divisible_by": 64}}),
    ("llama-3-8b", {}, DIVIDED | {"megatron": {"recompute_method": "block", "recompute_num_layers": 3}}),
    ("llama-3-8b", {"recompute": "selective"}, DIVIDED | {"megatron": {
        "recompute_modules": ["core_attn", "mlp"], "use_precision_aware_optimizer": True,
        "exp_avg_dtype": "bfloat16", "exp_avg_sq_dtype": "float16"}}),
    ("qwen2.5-7b", {}, DIVIDED),
    ("qwen3-8b", {}, DIVIDED),
]


def words_of(run: Run, **options: Any) -> list[str]:
    chosen = RequestOptions(**{"tokens": 10**10} | options)
    return megatron_words(run, chosen, resources(estimate(run), step_time(run), chosen))


@pytest.mark.parametrize(("model", "training", "parallel"), MEGATRON)
def test_megatron_knows_every_argument(model: str, training: dict, parallel: dict) -> None:
    known = set(json.loads((DATA / "megatron_arguments.json").read_text())["arguments"])
    words = words_of(run_of("megatron", model=model, training=training, **parallel))
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize(("model", "training", "parallel"), MEGATRON)
def test_megatron_arguments_are_the_run(model: str, training: dict, parallel: dict, tmp_path: Path) -> None:
    """From the script, through bash and our own reader of launches, to the keys of the run."""
    run = run_of("megatron", model=model, training=training, **parallel)
    (call,) = calls(files_of(run, schedulers=())["launch.sh"], tmp_path, "torchrun", RDZV_ENDPOINT="a:1")
    assert "pretrain_gpt.py" in call
    keys = run_keys_of(parse_command(" ".join(call[call.index("pretrain_gpt.py") + 1:])), 16)
    sizes = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_hidden_size",
             "vocab_size", "max_position_embeddings", "norm", "positions", "qk_norm", "tie_embeddings",
             "dropout", "attention_dropout")
    assert {n: keys["model"][n] for n in sizes} == {n: getattr(run.model, n) for n in sizes}
    assert keys["model"]["bias"] | {"head": False} == run.model.bias.model_dump()
    steps = ("seq_len", "micro_batch_size", "global_batch_size", "precision", "optimizer", "attention",
             "recompute", "loss")
    assert {n: keys["training"][n] for n in steps} == {n: getattr(run.training, n) for n in steps}
    axes = ("dp", "tp", "pp", "vpp", "cp", "sequence_parallel", "zero_stage", "framework")
    assert {n: keys["parallel"][n] for n in axes} == {n: getattr(run.parallel, n) for n in axes}
    assert keys["parallel"].get("stage_layers") == run.parallel.stage_layers
    for name, value in keys["parallel"]["megatron"].items():
        assert value is None or value == getattr(run.parallel.megatron, name), name


@pytest.mark.parametrize(("training", "parallel", "told"), [
    ({"optimizer": "sgd"}, {}, "optimizer"),
    ({"attention": "efficient"}, {}, "attention"),
    ({}, {"megatron": {"use_precision_aware_optimizer": True, "store_param_remainders": False}},
     "store_param_remainders"),
    ({"recompute": {"every": 2}}, {}, "recompute"),
    ({"loss": "chunked"}, {}, "loss"),
    ({"precision": "bf16"}, {}, "precision"),
    ({}, {"pp": 3, "tp": 1}, "33 blocks|32 blocks"),
    ({"recompute": "none"}, {"pp": 4, "stage_layers": [9, 7, 9, 7]}, "middle stages"),
    ({}, {"megatron": {"old_transformer_engine": True}}, "old_transformer_engine"),
    ({}, {"megatron": {"cublas_workspace_bytes": 2**20}}, "cublas_workspace_bytes"),
])
def test_what_megatron_cannot_say_is_refused(training: dict, parallel: dict, told: str) -> None:
    from gpuledger.planner.requests.megatron import argument, arguments, read_back

    run = run_of("megatron", gpus=parallel.get("pp", 1) * 8, training={"global_batch_size": 240} | training,
                 **parallel)
    with pytest.raises(InputError, match=told):
        read_back(run, [word for name, value in arguments(run) for word in argument(name, value)])


def test_an_argument_of_the_user_must_not_make_it_another_run() -> None:
    run = run_of("megatron", **DIVIDED)
    assert words_of(run, script_arguments=("--lr", "1e-4", "--mock-data", HOSTILE))
    with pytest.raises(InputError, match=r"vocab_size = 128256: Megatron's arguments say 128257"):
        words_of(run, script_arguments=("--tokenizer-type", "NullTokenizer"))
    with pytest.raises(InputError, match=r"'a b' is no argument of pretrain_gpt.py"):
        words_of(run, script_arguments=("a b",))
    with pytest.raises(InputError, match=r"parallel.tp = 2"):
        words_of(run, script_arguments=("--tensor-model-parallel-size", "4"))


@pytest.mark.parametrize("changed", [
    {"model": {"qkv_projection": "fused", "gate_up_projection": "fused"}},
    {"training": {"optimizer_implementation": "fused"}},
    {"training": {"rmsnorm_implementation": "composed"}}])
def test_keys_that_are_not_compared_change_nothing_in_megatron(changed: dict) -> None:
    run = run_of("megatron", **DIVIDED)
    (part, values), = changed.items()
    other = run.model_copy(update={part: getattr(run, part).model_copy(update=values)})
    assert estimate(other).memory == estimate(run).memory


def test_one_connection_where_megatron_insists_on_it() -> None:
    files = files_of(run_of("megatron", **DIVIDED))
    assert environment(run_of("megatron", **DIVIDED)) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert environment(run_of("megatron")) == environment(run_of("fsdp2", tp=2)) == {}
    for name in ("launch.sh", "job.sbatch"):
        assert "\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n" in files[name]
    *_, job = yaml.safe_load_all(files["job.yaml"])
    assert job["spec"]["template"]["spec"]["containers"][0]["env"] == [
        {"name": "CUDA_DEVICE_MAX_CONNECTIONS", "value": "1"}]


def test_megatron_stops_in_time_and_saves() -> None:
    """12 h less 300 s are 715 minutes; a save every 600 s."""
    words = words_of(run_of("megatron", **DIVIDED), wall_time_limit_hours=12, checkpoint_interval_seconds=600)
    said = parse_command(" ".join(words))
    assert said["exit-duration-in-mins"] == 715
    step = step_time(run_of("megatron", **DIVIDED))
    assert said["save-interval"] == int(600 // (step.error.high_seconds or step.step_seconds))


def test_ds_config_by_hand() -> None:
    run = run_of("deepspeed", zero_stage=2, training={"gradient_clipping": True},
                 deepspeed={"overlap_comm": True, "reduce_bucket_size": 10**7})
    config = ds_config(run)
    zero = config.pop("zero_optimization")
    assert config == {
        "train_batch_size": 256, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16,
        "gradient_clipping": 1.0, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False}
    assert (zero["stage"], zero["reduce_bucket_size"], zero["overlap_comm"]) == (2, 10**7, True)
    assert "offload_optimizer" not in zero


def test_what_a_ds_config_cannot_say_is_refused() -> None:
    run = run_of("deepspeed", tp=2, training={"precision": "bf16-mixed"})
    with pytest.raises(InputError) as refused:
        ds_config(run)
    assert [p.message.split(":")[0] for p in refused.value.problems] == ["tp = 2", "precision"]


TITAN = {"zero_stage": 3, "fsdp2": {"param_dtype": "bfloat16", "reduce_dtype": "float32"}}


def titan_of(run: Run) -> dict[str, dict[str, Any]]:
    """Its steps do not depend on the mesh, and pp with fsdp2 has no estimate."""
    options = RequestOptions(tokens=10**10, launcher="torchtitan")
    whole = run_of("fsdp2", zero_stage=3)
    return job_config(run, options, resources(estimate(whole), step_time(whole), options))


def test_torchtitan_knows_every_key() -> None:
    known = json.loads((DATA / "torchtitan_keys.json").read_text())["sections"]
    run = run_of("fsdp2", training={"loss": "fp32_logits"}, tp=2, pp=2, vpp=2, sequence_parallel=True, **TITAN)
    for section, keys in titan_of(run).items():
        for key, value in keys.items():
            annotation = known[section][key]
            literals = re.search(r"Literal\[(.*?)\]", annotation)
            assert not literals or repr(value) in literals.group(1), (section, key)


def test_torchtitan_by_hand() -> None:
    run = run_of("fsdp2", gpus=32, training={"loss": "fp32_logits"}, tp=2, pp=2, sequence_parallel=True,
                 zero_stage=2, fsdp2=TITAN["fsdp2"] | {"replicate": 2})
    said = titan_of(run)
    assert said["model"] == {"name": "llama3", "flavor": "8B"}
    assert said["training"] == {
        "local_batch_size": 32, "global_batch_size": 256, "seq_len": 4096, "steps": 9537,
        "max_norm": float("inf"), "enable_cpu_offload": False, "dtype": "float32",
        "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32"}
    modules = said["parallelism"].pop("module_fqns_per_model_part")
    assert said["parallelism"] == {
        "data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4,
        "fsdp_reshard_after_forward": "never", "tensor_parallel_degree": 2, "context_parallel_degree": 1,
        "pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_microbatch_size": 1}
    assert [len(part) for part in modules] == [
        part.num_layers + part.embedding + 2 * part.head for part in model_parts(run)]
    assert (modules[0][0], modules[-1][-2:]) == ("tok_embeddings", ["norm", "output"])


def test_torchtitan_recomputes_by_operator() -> None:
    run = run_of("fsdp2", training={"loss": "fp32_logits", "recompute": "per_op"}, **TITAN)
    assert titan_of(run)["activation_checkpoint"] == {
        "mode": "selective", "selective_ac_option": "op", "early_stop": True}


@pytest.mark.skipif(tomllib is None, reason="tomllib is in Python 3.11 and later")
def test_the_job_file_is_toml() -> None:
    run = run_of("fsdp2", training={"loss": "fp32_logits"}, **TITAN)
    files = files_of(run, launcher="torchtitan", checkpoint_folder='a "b" \\ é')
    said = tomllib.loads(files["torchtitan.toml"])
    assert said == titan_of(run) | {"checkpoint": said["checkpoint"]}
    assert said["checkpoint"]["folder"] == 'a "b" \\ é'
    assert "torchtitan.train" in files["launch.sh"]
    assert "torchtitan.toml: |" in files["job.yaml"]


def test_what_torchtitan_does_otherwise_is_refused() -> None:
    run = run_of("fsdp2", model="gpt2", training={
        "seq_len": 1024, "optimizer": "lion", "recompute": "selective", "attention": "efficient"},
        zero_stage=3, fsdp2={"forward_prefetch": 2})
    with pytest.raises(InputError) as refused:
        files_of(run, launcher="torchtitan")
    text = str(refused.value)
    for told in ("gpt2 is none of", "optimizer lion", "loss: cross_entropy", "attention: efficient",
                 "recompute: selective", "by autocast", "fsdp2.forward_prefetch"):
        assert told in text, told


def test_every_framework_has_a_launcher() -> None:
    from typing import get_args

    from gpuledger.config.parallelism import Framework

    assert set(LAUNCHERS) == set(get_args(Framework))


def test_refusals_carry_hints() -> None:
    with pytest.raises(GpuledgerError) as refused:
        files_of(run_of("ddp"), launcher="megatron")
    assert refused.value.problems[0].hint == "use torchrun"
