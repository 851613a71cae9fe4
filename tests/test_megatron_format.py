"""Launches of Megatron-LM as files: scripts and test cases are runs, and what changes memory is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuledger.cli.main import status_of
from gpuledger.config import Run, RunOptions, resolve_run
from gpuledger.errors import InputError, NotYetError
from gpuledger.formats.megatron import launch_keys, run_keys_of
from gpuledger.formats.megatron_script import parse_command, parse_script

SCRIPT = """#!/bin/bash
# Runs the "175B" parameter model
GPUS_PER_NODE=8
NUM_NODES=${1:-16}
WORLD_SIZE=$(($GPUS_PER_NODE * $NUM_NODES))
SEQ_LEN=${SEQ_LEN:-2048}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288   # of the residual stream
    --num-attention-heads 96
    --seq-length $SEQ_LEN
    --max-position-embeddings 2048
)
TRAINING_ARGS="--micro-batch-size 1 \\
    --global-batch-size $((WORLD_SIZE * 2)) \\
    --bf16 --recompute-granularity full --recompute-method block --recompute-num-layers 4"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING_ARGS \\
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --use-distributed-optimizer
"""
CASE = """
ENV_VARS:
  NVTE_ALLOW_NONDETERMINISTIC_ALGO: 0
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --bf16: true
  --tensor-model-parallel-size: 2
  --recompute-granularity: selective
  --recompute-modules: "[mlp]"
TEST_TYPE: regular
"""
SMALL = {"num-layers": 2, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 32,
         "max-position-embeddings": 32, "micro-batch-size": 1, "bf16": True}


def run_of(tmp_path: Path, name: str, text: str, **options: Any) -> Run:
    path = tmp_path / name
    path.write_text(text)
    return resolve_run(path, RunOptions(gpu="h100", **options))[0]


def test_a_script_and_a_test_case_are_runs(tmp_path: Path) -> None:
    """Variables, defaults, arithmetic, arrays, comments and the launcher's number of GPUs."""
    run = run_of(tmp_path, "train.sh", SCRIPT)
    axes = run.parallel
    assert (run.name, run.cluster.gpus, axes.tp, axes.pp, axes.dp, axes.zero_stage) == (
        "train", 128, 8, 8, 2, 1)
    assert (run.model.hidden_size, run.training.global_batch_size, run.training.recompute) == (
        12_288, 256, "full")
    assert (axes.megatron.recompute_method, axes.megatron.recompute_num_layers) == ("block", 4)
    case = run_of(tmp_path, "model_config.yaml", CASE, gpus=8)
    assert (case.parallel.dp, case.parallel.tp, case.training.recompute) == (4, 2, "selective")
    assert case.parallel.megatron.recompute_modules == ("mlp",)


def test_a_script_is_estimated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT)
    assert status_of(["estimate", str(tmp_path / "train.sh"), "--gpu", "h100"]) == 0
    said = capsys.readouterr()
    assert "128 x h100-80gb-sxm, tp 8, pp 8 (1f1b), dp 2, ZeRO stage 1" in said.out
    assert "assumed: attention = flash" in said.err


@pytest.mark.parametrize(("argument", "words"), [
    ("--num-experts 8", "mixture of experts"), ("--fp8-format hybrid", "FP8"),
    ("--optimizer sgd", "--optimizer sgd"), ("--cp-comm-type a2a", "--cp-comm-type a2a"),
    ("--recompute-granularity selective --recompute-modules moe_act", "moe_act"),
    ("--distribute-saved-activations", "divided over tp"), ("--tp-comm-overlap", "user buffers")])
def test_what_changes_memory_and_has_no_account_is_refused(argument: str, words: str) -> None:
    with pytest.raises(NotYetError, match=words):
        run_keys_of(SMALL | parse_command(argument), 1)


@pytest.mark.parametrize(("change", "words"), [
    ({"num-layers": None}, "--num-layers is missing"),
    ({"hidden-size": "$HIDDEN"}, "only variables that the script sets"),
    ({"tokenizer-type": "HuggingFaceTokenizer"}, "--vocab-size"),
    ({"tensor-model-parallel-size": 3}, "does not divide")])
def test_sizes_that_nobody_can_read(change: dict[str, Any], words: str) -> None:
    given = {key: value for key, value in (SMALL | change).items() if value is not None}
    with pytest.raises(InputError) as error:
        run_keys_of(given, 8)
    problem = error.value.problems[0]
    assert words in f"{problem.message} {problem.hint}"


def test_values_end_where_they_end() -> None:
    assert parse_script("A=(--num-layers 4)\nB=(--bf16)\ntorchrun --nnodes 2 train.py ${A[@]} x") == {
        "num-layers": 4, "bf16": True, "nnodes": 2}
    assert parse_script('N=3\nX="--num-layers $N --lr 1.0e-4"') == {"num-layers": 3, "lr": 1e-4}
    assert parse_script("N=4\npython t.py --seq-length=$(((N + 2) * $N / 3)) --bf16") == {
        "seq-length": 8, "bf16": True}


def test_without_a_launcher_the_gpus_are_asked_for(tmp_path: Path) -> None:
    text = "pretrain_gpt.py " + " ".join(f"--{k} {v}" if v is not True else f"--{k}" for k, v in SMALL.items())
    assert "cluster" not in launch_keys(parse_command(text))
    run = run_of(tmp_path, "words.txt", text, gpus=4)
    assert (run.parallel.dp, run.training.global_batch_size) == (4, 4)
    with pytest.raises(InputError, match="gpus"):
        run_of(tmp_path, "words.txt", text)


def test_precision_aware_dtypes_need_their_flag() -> None:
    dtypes = {"exp-avg-dtype": "bf16", "main-grads-dtype": "bf16"}
    plain = run_keys_of(SMALL | dtypes, 1)["parallel"]["megatron"]
    assert "exp_avg_dtype" not in plain
    aware = run_keys_of(SMALL | dtypes | {"use-precision-aware-optimizer": True}, 1)["parallel"]["megatron"]
    assert (aware["exp_avg_dtype"], aware["main_grads_dtype"]) == ("bfloat16", "bfloat16")
