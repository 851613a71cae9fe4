"""Models, GPUs and clusters by name, file or keys."""

from __future__ import annotations

from pathlib import Path

from .cluster import Cluster, Gpu
from .model import Model
from .problems import validated
from .sources import Source, cluster_keys, gpu_keys, model_keys


def load_model(source: Source, folder: Path | None = None) -> Model:
    """The model of a preset's name, a file (ours or a Hugging Face config.json), or its keys.

    Relative paths start from `folder`, or from the working directory. Raises InputError with all
    problems.
    """
    return validated(Model, model_keys(source, folder), "model")


def load_gpu(source: Source) -> Gpu:
    """The GPU of a preset's name, a file or its keys. Raises InputError; never guesses a peak."""
    return validated(Gpu, gpu_keys(source), "gpu")


def load_cluster(source: Source) -> Cluster:
    """The cluster of a preset's name, a file or its keys. Raises InputError with all problems."""
    return validated(Cluster, cluster_keys(source), "cluster")
