"""The real parsers of torchrun and of DeepSpeed read what a request writes."""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from request_runs import HOSTILE, calls, files_of, run_of

run_module = pytest.importorskip("torch.distributed.run", reason="torch is not installed")
needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None,
                                     reason="deepspeed is not installed")
READ_CONFIG = """
import json, sys
import deepspeed.runtime.config as configuration
ranks = int(sys.argv[1])
configuration.dist.get_rank, configuration.dist.get_world_size = lambda: 0, lambda *group: ranks
read = configuration.DeepSpeedConfig(json.loads(sys.stdin.read()))
print(json.dumps({"zero": json.loads(read.zero_config.model_dump_json()),
    "batches": [read.train_batch_size, read.train_micro_batch_size_per_gpu,
                read.gradient_accumulation_steps], "bf16": read.bfloat16_config.enabled,
    "clipping": read.gradient_clipping}))
"""
READ_WORDS = """
import json, sys
from deepspeed.launcher.runner import parse_args
print(json.dumps(vars(parse_args(json.loads(sys.stdin.read())))))
"""


def torchrun(words: list[str]) -> Namespace:
    return run_module.get_args_parser().parse_args(words[words.index("torchrun") + 1:])


@pytest.mark.parametrize(("framework", "parallel"), [
    ("ddp", {}), ("fsdp2", {"zero_stage": 3}), ("megatron", {"tp": 2, "pp": 2})])
def test_torchrun_reads_its_options(framework: str, parallel: dict, tmp_path: Path) -> None:
    files = files_of(run_of(framework, **parallel), script="my.py", script_arguments=("--nnodes=9", HOSTILE))
    (words,) = calls(files["launch.sh"], tmp_path, "torchrun", RDZV_ENDPOINT="node-0:29500")
    read = torchrun(words)
    assert (read.nnodes, read.nproc_per_node, read.rdzv_backend, read.rdzv_endpoint) == (
        "2", "8", "c10d", "node-0:29500")
    assert (read.training_script, read.training_script_args[-2:]) == ("my.py", ["--nnodes=9", HOSTILE])
    (tmp_path / "slurm").mkdir()
    (words,) = calls(files["job.sbatch"], tmp_path / "slurm", "srun", SLURM_JOB_ID="77",
                     SLURM_JOB_NODELIST="n", SLURM_CPUS_PER_TASK="64")
    read = torchrun(words)
    assert (read.rdzv_id, read.rdzv_endpoint, read.training_script) == ("77", "node-0:29500", "my.py")


def test_torchrun_reads_torchtitans_module(tmp_path: Path) -> None:
    run = run_of("fsdp2", gpus=8, zero_stage=3, training={"loss": "fp32_logits"},
                 fsdp2={"param_dtype": "bfloat16", "reduce_dtype": "float32"})
    (words,) = calls(files_of(run, launcher="torchtitan")["launch.sh"], tmp_path, "torchrun")
    read = torchrun(words)
    assert (read.module, read.standalone, read.training_script) == (True, True, "torchtitan.train")
    assert read.training_script_args == ["--job.config_file", "torchtitan.toml"]


def deepspeed_reads(program: str, text: str, *arguments: str) -> dict:
    """What DeepSpeed makes of it, in a process of its own that builds no operators."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], input=text, text=True, timeout=300,
                          capture_output=True, env={**os.environ, "DS_BUILD_OPS": "0",
                                                    "DS_SKIP_CUDA_CHECK": "1", "DS_ACCELERATOR": "cuda"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@needs_deepspeed
def test_deepspeed_reads_its_configuration() -> None:
    options = {"overlap_comm": True, "reduce_bucket_size": 10**7, "allgather_bucket_size": 2 * 10**7}
    run = run_of("deepspeed", zero_stage=2, training={"gradient_clipping": True}, deepspeed=options)
    read = deepspeed_reads(READ_CONFIG, files_of(run)["ds_config.json"], "16")
    assert (read["batches"], read["bf16"], read["clipping"]) == ([256, 1, 16], True, 1.0)
    said = {name: read["zero"][name] for name in options}
    assert said == options and read["zero"]["stage"] == 2


@needs_deepspeed
def test_deepspeeds_launcher_reads_its_options(tmp_path: Path) -> None:
    files = files_of(run_of("deepspeed", zero_stage=1), script="my.py", script_arguments=(HOSTILE,))
    (words,) = calls(files["launch.sh"], tmp_path, "deepspeed", HOSTFILE="my hosts")
    read = deepspeed_reads(READ_WORDS, json.dumps(words[1:]))
    assert (read["hostfile"], read["num_nodes"], read["num_gpus"], read["master_port"]) == (
        "my hosts", 2, 8, 29500)
    assert read["user_script"] == "my.py"
    assert read["user_args"] == ["--deepspeed", "--deepspeed_config", "ds_config.json", HOSTILE]


@needs_deepspeed
def test_the_engine_of_our_own_measurements_has_the_same_keys() -> None:
    from gpuledger.planner.requests.deepspeed import zero_optimization
    from gpuledger.torch_runs.deepspeed_engine import configuration

    run = run_of("deepspeed", zero_stage=2, deepspeed={"overlap_comm": True})
    ours = configuration(run.training, run.parallel, run.num_microbatches)
    zero = {key: value for key, value in ours["zero_optimization"].items() if value is not None}
    assert zero_optimization(run) == zero
