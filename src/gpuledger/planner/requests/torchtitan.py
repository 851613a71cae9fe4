"""torchtitan.toml: a job file of torchtitan 0.2.2, the last release that reads them.

Ref: torchtitan v0.2.2, torchtitan/config/job_config.py, models/llama3/__init__.py, models/attention.py,
components/loss.py. Later releases are configured in Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...config.run import Run
from ...errors import InputError, Problem
from ...memory.pipeline.stages import model_parts
from ...program.model import Stage
from .options import RequestOptions
from .resources import Resources
from .words import recompute_text

CONFIG_NAME = "torchtitan.toml"
HEAD = "# {name}, for torchtitan 0.2.2. Learning rate, data and tokenizer are left at\n# torchtitan's defaults.\n"
# (layers, hidden, heads, KV heads, FFN width, vocabulary) of torchtitan's own models: name, flavor.
# The vocabulary is the tokenizer's there: Llama 3's has 128,256 entries.
FLAVORS: dict[tuple[int, ...], tuple[str, str]] = {
    (32, 4096, 32, 8, 14336, 128256): ("llama3", "8B"),
    (80, 8192, 64, 8, 28672, 128256): ("llama3", "70B"),
    (126, 16384, 128, 8, 53248, 128256): ("llama3", "405B"),
}
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B",
             "zb-v": "ZBVZeroBubble"}
SAYABLE = ("param_dtype", "reduce_dtype", "replicate", "reshard_after_forward", "cpu_offload")
OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW"}


def job_config(run: Run, options: RequestOptions, resources: Resources) -> dict[str, dict[str, Any]]:
    """Sections and keys of the job file. Raises InputError with all that torchtitan does otherwise."""
    problems = list(unsayable(run))
    if problems:
        raise InputError.of(problems)
    training = run.training
    name, flavor = FLAVORS[sizes(run)]
    sections: dict[str, dict[str, Any]] = {
        "job": {"description": " ".join(run.name.split())},
        "model": {"name": name, "flavor": flavor},
        "optimizer": {"name": OPTIMIZERS[training.optimizer],
                      "implementation": training.optimizer_implementation},
        "training": {
            "local_batch_size": training.micro_batch_size * pipeline_batches(run),
            "global_batch_size": training.global_batch_size, "seq_len": training.seq_len,
            "steps": resources.steps, "max_norm": 1.0 if training.gradient_clipping else float("inf"),
            "enable_cpu_offload": run.parallel.fsdp2.cpu_offload, **precision_of(run)},
        "parallelism": dict(parallelism(run)),
        "activation_checkpoint": activation_checkpoint(run),
        "checkpoint": {"enable": True, "folder": options.checkpoint_folder,
                       "keep_latest_k": max(2, options.kept_checkpoints)},
    }
    if resources.cadence.steps is not None:
        sections["checkpoint"]["interval"] = resources.cadence.steps
    return sections


def sizes(run: Run) -> tuple[int, ...]:
    """What tells torchtitan's models apart."""
    model = run.model
    return (model.num_layers, model.hidden_size, model.num_heads, model.num_kv_heads,
            model.ffn_hidden_size, model.vocab_size)


def pipeline_batches(run: Run) -> int:
    """torchtitan's local batch holds all micro-batches of a pipeline; without one, a single one."""
    return run.num_microbatches if run.parallel.pp > 1 else 1


def precision_of(run: Run) -> dict[str, str]:
    """Datatype of the weights, of what fully_shard gathers, and of the reduction."""
    weights = "bfloat16" if run.training.precision == "bf16" else "float32"
    return {"dtype": weights, "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32"}


def parallelism(run: Run) -> Iterator[tuple[str, Any]]:
    """Degrees of every axis and modules of every stage; none is left to be inferred."""
    axes = run.parallel
    yield "data_parallel_replicate_degree", axes.fsdp2.replicate
    yield "data_parallel_shard_degree", axes.dp // axes.fsdp2.replicate
    yield "fsdp_reshard_after_forward", "always" if axes.zero_stage == 3 else "never"
    yield "tensor_parallel_degree", axes.tp
    yield "context_parallel_degree", axes.cp
    yield "pipeline_parallel_degree", axes.pp
    if axes.pp > 1:
        yield "pipeline_parallel_schedule", SCHEDULES[axes.pipeline_schedule]
        yield "pipeline_parallel_microbatch_size", run.training.micro_batch_size
        yield "module_fqns_per_model_part", [modules_of(part) for part in model_parts(run)]


def activation_checkpoint(run: Run) -> dict[str, Any]:
    """early_stop is PyTorch's default, and the estimate's; torchtitan's own is false."""
    if run.training.recompute == "per_op":
        return {"mode": "selective", "selective_ac_option": "op", "early_stop": True}
    return {"mode": run.training.recompute, "early_stop": True}


def modules_of(part: Stage) -> list[str]:
    """A part of the model by the names of torchtitan's modules."""
    first = part.first_layer
    blocks = [f"layers.{number}" for number in range(first, first + part.num_layers)]
    return [*["tok_embeddings"] * part.embedding, *blocks, *["norm", "output"] * part.head]


def unsayable(run: Run) -> Iterator[Problem]:
    """What a job file cannot say, or torchtitan does in another way."""
    training, axes = run.training, run.parallel
    if sizes(run) not in FLAVORS or run.model.tie_embeddings or run.model.activation != "swiglu":
        yield Problem(f"{run.model.name} is none of torchtitan's Llama 3 models",
                      "use launcher: torchrun with a script of your own")
    if training.optimizer not in OPTIMIZERS or training.amsgrad:
        yield Problem(f"torchtitan has no optimizer {training.optimizer}"
                      f"{' with amsgrad' if training.amsgrad else ''}", "set optimizer: adamw")
    if training.loss != "fp32_logits":
        yield Problem(f"loss: {training.loss}, but torchtitan's loss reads the logits in fp32",
                      "set loss: fp32_logits")
    if training.attention not in ("flash", "cudnn"):
        yield Problem(f"attention: {training.attention}, but torchtitan lets PyTorch take cuDNN or flash",
                      "set attention: flash or cudnn")
    if training.recompute not in ("none", "per_op", "full"):
        yield Problem(f"recompute: {recompute_text(run)}, but torchtitan saves by operator, or counts "
                      "blocks from k - 1", "set recompute: none, per_op or full")
    if axes.pipeline_schedule not in SCHEDULES:
        yield Problem(f"schedule: {axes.pipeline_schedule} is none of torchtitan's",
                      f"use {', '.join(SCHEDULES)}")
    if axes.tp > 1 and not axes.sequence_parallel:
        yield Problem("torchtitan's tensor parallelism divides the sequence too",
                      "set sequence_parallel: true")
    yield from unsayable_sharding(run)


def unsayable_sharding(run: Run) -> Iterator[Problem]:
    """Datatypes and options of fsdp2."""
    precision, policy = run.training.precision, run.parallel.fsdp2
    if precision not in ("bf16", "bf16-mixed"):
        yield Problem(f"precision: {precision} is none of torchtitan's", "set precision: bf16-mixed")
    if precision == "bf16-mixed" and policy.param_dtype is None:
        yield Problem("torchtitan casts by fsdp2's policy, not by autocast",
                      "set fsdp2.param_dtype: bfloat16")
    if policy.reduce_dtype != "float32":
        yield Problem("torchtitan reduces gradients in fp32", "set fsdp2.reduce_dtype: float32")
    changed = [f"fsdp2.{name}" for name, field in type(policy).model_fields.items()
               if name not in SAYABLE and getattr(policy, name) != field.get_default()]
    if changed:
        yield Problem(f"torchtitan has no option for {', '.join(changed)}", "leave them out")


def job_config_text(run: Run, options: RequestOptions, resources: Resources) -> str:
    """The file. JSON's texts, numbers and lists are TOML's too; infinity is `inf`."""
    lines = [HEAD.format(name=" ".join(run.name.split()))]
    for section, keys in job_config(run, options, resources).items():
        lines += [f"[{section}]", *(f"{key} = {toml(value)}" for key, value in keys.items()), ""]
    return "\n".join(lines)


def toml(value: Any) -> str:
    """One value."""
    return "inf" if value == float("inf") else json.dumps(value)
