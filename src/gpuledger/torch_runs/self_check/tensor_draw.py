"""Random runs whose layers are divided over tensor-parallel ranks by DTensor, alone or under FSDP2."""
from __future__ import annotations

import random
from typing import Any

from gpuledger.config.run import Run
from gpuledger.memory.frameworks import unmodelled
from gpuledger.memory.sharding import unmodelled_sharding

from .context_draw import draw_context_run
from .draw import draw_run, kernels_for, run_of
from .framework_draw import adam, draw_fsdp2

TP_RANKS = (2, 2, 3, 4, 8)
DP_RANKS = (1, 2, 2, 4, 32)
DIVIDED = ("num_heads", "num_kv_heads", "ffn_hidden_size")


def draw_tensor_run(rng: random.Random, framework: str | None) -> tuple[Run, int]:
    """A run that has an account, and the rank of it that is looked at: tp ranks are neighbours."""
    while True:
        base = draw_run(rng)
        tp, dp = rng.choice(TP_RANKS), rng.choice(DP_RANKS) if framework else 1
        sequence = rng.random() < 0.7
        keys = base.model_dump()
        parallel, training = (draw_fsdp2(rng, dp, base.num_microbatches) if framework
                              else ({}, adam(rng) | {"set_to_none": True}))
        keys["parallel"] = {"dp": dp, "tp": tp, "sequence_parallel": sequence, "framework": framework,
                            "model_parallel": "torch", **parallel}
        keys["training"] |= training
        keys["training"]["global_batch_size"] = base.training.global_batch_size * dp
        divide(keys, tp, sequence=sequence, vocabulary=rng.random() < 0.7)
        keys["cluster"]["gpus"] = dp * tp
        run = run_of(keys)
        if run is None:
            continue
        possible = run.training.attention in kernels_for(run.model, run.training.precision)
        if possible and not any(unmodelled(run)) and not any(unmodelled_sharding(run)):
            # the last ranks have fewer rows of a vocabulary that tp does not divide
            ranks = range(0, dp * tp, tp if run.model.vocab_size % tp else 1)
            return run, rng.choice([0, 0, ranks[-1], rng.choice(ranks)])


def draw_context_tensor_run(rng: random.Random) -> tuple[Run, int]:
    """Context parallelism too, under FSDP2: its ranks are tp apart."""
    while True:
        base, _ = draw_context_run(rng)
        keys, tp = base.model_dump(), rng.choice((2, 2, 4))
        if base.parallel.framework != "fsdp2" or base.training.seq_len // base.parallel.cp % tp:
            continue
        keys["parallel"] |= {"tp": tp, "sequence_parallel": rng.random() < 0.7}
        divide(keys, tp, sequence=False, vocabulary=True)
        keys["cluster"]["gpus"] = base.parallel.world_size * tp
        run = run_of(keys)
        if run is None:
            continue
        if not any(unmodelled(run)) and not any(unmodelled_sharding(run)):
            return run, rng.randrange(run.parallel.world_size)


def divide(keys: dict[str, Any], tp: int, *, sequence: bool, vocabulary: bool) -> None:
    """Sizes that tp divides; sequence and vocabulary where that is asked for."""
    model, training = keys["model"], keys["training"]
    for name in (*DIVIDED, *(("vocab_size",) if vocabulary else ())):
        model[name] = (model[name] // tp + 1) * tp if model[name] % tp else model[name]
    if model["num_heads"] % model["num_kv_heads"]:
        model["num_kv_heads"] = model["num_heads"]
    if sequence and training["seq_len"] % tp:
        training["seq_len"] += tp - training["seq_len"] % tp
        model["max_position_embeddings"] += tp
