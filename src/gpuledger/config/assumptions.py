"""What is assumed where a run does not say, and one line about each thing for the reader."""

from __future__ import annotations

from typing import Any

from ..errors import Problem
from .cluster import Cluster
from .model import Model
from .parallelism import STAGES
from .reading import Values


def complete_cluster(cluster: Values, assumptions: list[str]) -> None:
    """Nodes of eight, said where there are several. GPU and number of GPUs are never assumed."""
    gpus = _whole(cluster.get("gpus"))
    per_node = Cluster.model_fields["gpus_per_node"].default
    if "gpus_per_node" not in cluster and gpus is not None and gpus > per_node:
        assumptions.append(f"gpus_per_node = {per_node}")


def complete_parallel(
    parallel: Values, cluster: Values, problems: list[Problem], assumptions: list[str]
) -> None:
    """dp from the number of GPUs; ZeRO off unless the run says otherwise."""
    axes = {name: _whole(parallel.get(name, 1)) for name in ("tp", "pp", "cp")}
    gpus = _whole(cluster.get("gpus"))
    if "dp" not in parallel and gpus is not None and None not in axes.values():
        rest = (axes["tp"] or 1) * (axes["pp"] or 1) * (axes["cp"] or 1)
        if gpus % rest:
            problems.append(
                Problem(
                    f"tp * pp * cp = {axes['tp']} * {axes['pp']} * {axes['cp']} = {rest} does not "
                    f"divide {gpus} GPUs",
                    f"pass --gpus {-(-gpus // rest) * rest}, or change tp, pp, cp",
                )
            )
        else:
            parallel["dp"] = gpus // rest
    stages = STAGES.get(str(parallel.get("framework")))
    if "zero_stage" not in parallel and stages and stages[0]:
        parallel["zero_stage"] = stages[0]
        assumptions.append(f"zero_stage = {stages[0]} ({parallel['framework']})")
    if "zero_stage" not in parallel and (_whole(parallel.get("dp")) or 1) > 1:
        assumptions.append("zero_stage = 0 (each data-parallel rank keeps all states)")


def complete_training(run: Values, model: Model | None, assumptions: list[str]) -> None:
    """The conventional choice for each key of `training` that is missing.

    Without a model, which is then refused anyway, what is missing must not be reported beside it.
    """
    training = run.setdefault("training", {})
    if not isinstance(training, dict):
        return
    parallel, cluster = run.get("parallel"), run.get("cluster")
    dp = (_whole(parallel.get("dp")) if isinstance(parallel, dict) else None) or 1
    gpu = cluster.get("gpu") if isinstance(cluster, dict) else None

    def assume(key: str, value: Any, why: str = "") -> None:
        if key not in training:
            training[key] = value
            assumptions.append(f"{key} = {value}{f' ({why})' if why else ''}")

    if model is None:
        training.setdefault("seq_len", 1)
    else:
        assume("seq_len", model.max_position_embeddings, "the model's max_position_embeddings")
    assume("micro_batch_size", 1)
    micro = _whole(training.get("micro_batch_size")) or 1
    assume("global_batch_size", micro * dp, f"micro_batch_size x dp = {micro} x {dp}")
    if isinstance(parallel, dict) and parallel.get("framework") == "megatron":
        assume("precision", "bf16-master", "megatron: 16-bit weights, fp32 masters")
    assume("precision", "bf16-mixed", "autocast over fp32 weights")
    assume("optimizer", "adamw")
    assume("attention", *_usual_attention(training, model, gpu if isinstance(gpu, dict) else {}))
    assume("recompute", "none")
    assume("loss", "cross_entropy")


def _usual_attention(training: Values, model: Model | None, gpu: Values) -> tuple[str, str]:
    """flash, or the best kernel that PyTorch has for this model and GPU; and why not flash."""
    capability = str(gpu.get("capability") or "9.0").partition(".")[0]
    if model is None:
        return "efficient", ""
    if model.attention_softcap is not None:
        return "eager", "attention_softcap is in no fused kernel"
    if training.get("precision") in ("fp32", "tf32"):
        return "efficient", "flash computes in 16 bit only"
    if model.positions == "alibi":
        return "efficient", "flash takes no ALiBi bias"
    if model.head_dim > 256:
        return "efficient", "flash goes up to head_dim 256"
    if gpu.get("vendor") == "nvidia" and capability.isdecimal() and int(capability) < 8:
        return "efficient", "flash needs compute capability 8.0"
    if model.sliding_window is not None and model.head_dim % 8:
        return "efficient", "flash with a window needs a head_dim that is a multiple of 8"
    return "flash", ""


def _whole(value: object) -> int | None:
    """The value if it is a positive whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
