"""Random runs of a data-parallel framework, on one of 1 to 512 ranks, with options of its own."""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from gpuledger.config.run import Run
from gpuledger.memory.frameworks import unmodelled

from .draw import draw_run, kernels_for, run_of

RANKS = (1, 2, 2, 8, 8, 64, 512)
REPLICAS = (1, 2, 2, 4, 8)                   # GPUs that one process sees
Options = dict[str, Any]


def draw_framework_run(rng: random.Random, framework: str) -> tuple[Run, int]:
    """A run that the framework has an account for, and the rank that is looked at."""
    while True:
        base = draw_run(rng)
        ranks = rng.choice(REPLICAS if framework == "dataparallel" else RANKS)
        keys = base.model_dump()
        parallel, training = DRAWS[framework](rng, ranks, base.num_microbatches)
        keys["parallel"] = {"dp": ranks, "framework": framework, **parallel}
        keys["training"] |= training
        keys["training"]["global_batch_size"] = base.training.global_batch_size * ranks
        keys["cluster"]["gpus"] = ranks
        if framework == "dataparallel":
            keys["cluster"]["gpus_per_node"] = ranks
        run = run_of(keys)
        if run is None:
            continue
        possible = run.training.attention in kernels_for(run.model, run.training.precision)
        if possible and not any(unmodelled(run)):
            return run, rng.choice([0, 0, ranks - 1, ranks // 2]) * (framework != "dataparallel")


def some(rng: random.Random, chances: dict[str, tuple[float, Any]]) -> Options:
    """Each option with its own probability; a list is chosen from."""
    drawn = {}
    for name, (probability, value) in chances.items():
        if rng.random() < probability:
            drawn[name] = rng.choice(value) if isinstance(value, list) else value
    return drawn


def adam(rng: random.Random) -> Options:
    """The optimizer that every framework takes."""
    return {"optimizer": rng.choice(["adamw", "adamw", "adam"]), "momentum": 0.0,
            "optimizer_implementation": rng.choice(["foreach", "fused", "for-loop"])}


def ddp_options(rng: random.Random) -> Options:
    return some(rng, {
        "gradient_as_bucket_view": (0.4, True), "find_unused_parameters": (0.25, True),
        "static_graph": (0.2, True), "compression": (0.35, ["fp16", "bf16"]),
        "bucket_cap_mb": (0.4, [1, 2, 5, 100])})


def draw_ddp(rng: random.Random, ranks: int, micro_batches: int) -> tuple[Options, Options]:
    return {"ddp": ddp_options(rng)}, {}


def draw_zero_redundancy(
    rng: random.Random, ranks: int, micro_batches: int
) -> tuple[Options, Options]:
    options = some(rng, {"parameters_as_bucket_view": (0.3, True)})
    return {"zero_stage": 1, "ddp": ddp_options(rng), "zero_redundancy": options}, adam(rng)


def draw_fsdp2(rng: random.Random, ranks: int, micro_batches: int) -> tuple[Options, Options]:
    stage = rng.choice([3, 3, 2])
    copies = rng.choice([2, ranks]) if ranks > 1 and rng.random() < 0.25 else 1
    share = ranks // copies
    options = some(rng, {
        "forward_prefetch": (0.2, [1, 2]), "backward_prefetch": (0.2, [1, 2, 3]),
        "max_reduce_scatter_inputs": (0.15, 2), "sync_every_micro_batch": (0.3, False),
        "cpu_offload": (0.1, True), "replicate": (1.0, copies),
        "reshard_to": (0.2 * (stage == 3 and share > 2), [2, share // 2])})
    training = adam(rng) if rng.random() < 0.7 else {}
    if rng.random() < 0.5:
        training["precision"] = "bf16-mixed"
        options |= {"param_dtype": "bfloat16"} | some(rng, {"reduce_dtype": (0.7, "float32")})
    return {"zero_stage": stage, "fsdp2": options}, training


def draw_deepspeed(rng: random.Random, ranks: int, micro_batches: int) -> tuple[Options, Options]:
    options = {"reduce_bucket_size": rng.choice([20_000, 200_000, 1_000_000, 50_000_000])}
    options |= some(rng, {"overlap_comm": (0.4, [True, False])})
    training = adam(rng) | {"precision": "bf16-master", "set_to_none": True, "keep_logits": False}
    stage = rng.choice([0, 1, 1, 2, 2])
    offload = {"device": "cpu", "pin_memory": rng.random() < 0.5}
    options |= some(rng, {"offload_optimizer": (0.2, offload)})
    if rng.random() < 0.6:
        stage = 3
        options |= some(rng, {
            "stage3_prefetch_bucket_size": (0.6, [0, 3_000, 50_000, 400_000]),
            "stage3_param_persistence_threshold": (0.6, [0, 500, 10_000]),
            "stage3_max_live_parameters": (0.5, [100_000, 1_000_000]),
            "stage3_max_reuse_distance": (0.5, [0, 100_000, 1_000_000]),
            "sub_group_size": (0.4, [1_000, 50_000]), "offload_param": (0.2, offload)})
        training["loss"] = rng.choice(["cross_entropy", "fp32_logits"])
    return {"zero_stage": stage, "deepspeed": options}, training


def draw_fsdp1(rng: random.Random, ranks: int, micro_batches: int) -> tuple[Options, Options]:
    stage = rng.choice([3, 3, 2, 0])
    copies = rng.choice([2, ranks]) if ranks > 1 and stage and rng.random() < 0.25 else 1
    options = some(rng, {
        "replicate": (1.0, copies), "forward_prefetch": (0.25, True),
        "backward_prefetch": (0.5, ["post", "none"]), "use_orig_params": (0.4, True)})
    training = adam(rng) if rng.random() < 0.7 else {}
    if rng.random() < 0.6:
        training["precision"] = "bf16-mixed"
        options |= {"param_dtype": "bfloat16"} | some(rng, {"reduce_dtype": (0.6, "float32")})
    return {"zero_stage": stage, "fsdp1": options}, training


def draw_data_parallel(
    rng: random.Random, ranks: int, micro_batches: int
) -> tuple[Options, Options]:
    """Without recompute: PyTorch's checkpoints in the threads of several replicas sometimes fail."""
    precision = rng.choice(["fp32", "tf32", "bf16", "bf16", "bf16-master"])
    return {}, {"precision": precision, "recompute": "none"}


Draw = Callable[[random.Random, int, int], tuple[Options, Options]]
DRAWS: dict[str, Draw] = {
    "ddp": draw_ddp, "dataparallel": draw_data_parallel,
    "zero-redundancy-optimizer": draw_zero_redundancy, "fsdp2": draw_fsdp2, "fsdp1": draw_fsdp1,
    "deepspeed": draw_deepspeed}


def draw_many(framework: str, seeds: range) -> Iterator[tuple[int, Run, int]]:
    """(seed, run, rank), one for each seed."""
    for seed in seeds:
        run, rank = draw_framework_run(random.Random(f"{framework} {seed}"), framework)
        yield seed, run, rank
