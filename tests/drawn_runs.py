"""Runs for tests: small ones by hand, random ones from the self-check's draw (which needs no torch)."""
from __future__ import annotations

import random
from typing import Any

from gpuledger.config import Run, load_gpu
from gpuledger.config.problems import validated
from gpuledger.torch_runs.self_check.draw import draw_run


def random_run(seed: int, **settings: Any) -> Run:
    """A random run with some dotted settings replaced, as `parallel__dp=4`."""
    gpu = load_gpu("h100-80gb-sxm").model_dump()
    return with_settings(draw_run(random.Random(seed)), cluster__gpu=gpu, **settings)


def with_settings(run: Run, **settings: Any) -> Run:
    """The run with these settings, validated again."""
    keys = run.model_dump()
    for path, value in settings.items():
        part, name = path.split("__")
        keys[part][name] = value
    if keys["training"]["loss"] not in ("chunked", "fused_linear"):
        keys["training"].pop("loss_chunks")
    return validated(Run, keys)


def on_ranks(run: Run, dp: int, zero_stage: int) -> Run:
    """The same micro-batches on each of dp ranks."""
    batch = run.num_microbatches * run.training.micro_batch_size * dp
    return with_settings(run, parallel__dp=dp, parallel__zero_stage=zero_stage, cluster__gpus=dp,
                         training__global_batch_size=batch)
