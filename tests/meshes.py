"""Runs on meshes of tensor-, context- and pipeline-parallel ranks, for tests."""

from __future__ import annotations

from typing import Any

from gpuledger.config import Run, RunOptions, resolve_run
from gpuledger.config.problems import validated


def resolved(source: str, *settings: str, **options: object) -> Run:
    """A preset with settings, on H100s."""
    options.setdefault("gpus", 1)
    return resolve_run(source, RunOptions(gpu="h100", set=settings, **options))[0]


def on_mesh(run: Run, num_microbatches: int = 1, **axes: Any) -> Run:
    """The run on one data-parallel copy of a mesh."""
    keys = run.model_dump()
    keys["parallel"].update(axes)
    parallel = keys["parallel"]
    keys["cluster"]["gpus"] = parallel["dp"] * parallel["tp"] * parallel["pp"] * parallel["cp"]
    training = keys["training"]
    training["global_batch_size"] = num_microbatches * training["micro_batch_size"] * parallel["dp"]
    if training["loss"] not in ("chunked", "fused_linear"):
        training.pop("loss_chunks")
    return validated(Run, keys)
