"""Random runs whose sequences are divided over context-parallel ranks, in a framework or in none."""
from __future__ import annotations

import random
from typing import Any

from gpuledger.config.run import Run
from gpuledger.memory.context import context_problems
from gpuledger.memory.frameworks import unmodelled

from .draw import draw_run, run_of
from .framework_draw import draw_ddp, draw_fsdp2

CP_RANKS = (2, 2, 3, 4, 8)
DP_RANKS = (1, 1, 2, 8)
PIECES = {"flash": 1, "efficient": 32}         # tokens that each half of a rank's sequence is a multiple of


def draw_context_run(rng: random.Random) -> tuple[Run, int]:
    """A run that PyTorch's ring attention takes, and the rank that is looked at."""
    while True:
        base = draw_run(rng)
        if base.training.attention not in PIECES:
            continue
        cp, dp = rng.choice(CP_RANKS), rng.choice(DP_RANKS)
        keys = base.model_dump()
        framework = rng.choice([None, None, "ddp", "fsdp2"])
        parallel, training = options_of(rng, framework, dp * cp)
        exchange = rng.choice(["ring", "all-gather"])
        keys["parallel"] = {"dp": dp, "cp": cp, "model_parallel": "torch", "framework": framework,
                            "context_exchange": exchange, **parallel}
        step = 2 * cp * PIECES[base.training.attention]
        seq_len = max(1, base.training.seq_len // step) * step
        keys["training"] |= training | {
            "seq_len": seq_len, "global_batch_size": base.training.global_batch_size * dp}
        keys["model"]["max_position_embeddings"] = seq_len + rng.randint(0, 9)
        keys["cluster"]["gpus"] = dp * cp
        run = run_of(keys)
        if run is None:
            continue
        if not any(unmodelled(run)) and not any(context_problems(run)):
            return run, rng.randrange(dp * cp)


def options_of(rng: random.Random, framework: str | None,
               ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the framework, and what of the training goes with them."""
    if framework == "fsdp2":
        parallel, training = draw_fsdp2(rng, ranks, 1)
        parallel["fsdp2"] = {name: value for name, value in parallel["fsdp2"].items()
                             if name not in ("replicate", "reshard_to")}
        return parallel, training
    return draw_ddp(rng, ranks, 1) if framework == "ddp" else ({}, {})
