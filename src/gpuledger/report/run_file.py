"""A resolved run as a short run file: presets by name where they say the same."""

from __future__ import annotations

from typing import Any

import yaml

from ..config.cluster import Cluster, Gpu
from ..config.model import Model
from ..config.parallelism import Parallelism
from ..config.presets import preset_path
from ..config.problems import validated
from ..config.run import Run
from ..config.sources import gpu_keys, model_keys
from ..config.training import Training
from ..errors import GpuledgerError

ALWAYS = ("optimizer_implementation", "dp", "zero_stage", "gpus_per_node")  # said even if usual


def run_file(run: Run) -> str:
    """YAML that resolves to this run."""
    keys = run.model_dump(mode="json")
    if is_preset("models", run.model.name, run.model):
        keys["model"] = run.model.name
    if is_preset("gpus", run.cluster.gpu.name, run.cluster.gpu):
        keys["cluster"]["gpu"] = run.cluster.gpu.name
    for part, record in (("training", Training), ("parallel", Parallelism), ("cluster", Cluster)):
        for name, field in record.model_fields.items():
            if name not in ALWAYS and getattr(getattr(run, part), name) == field.get_default():
                del keys[part][name]
    text: str = yaml.safe_dump(
        keys, sort_keys=False, default_flow_style=False, allow_unicode=True, width=100
    )
    return text


def is_preset(kind: str, name: str, record: Model | Gpu) -> bool:
    """The preset of this name is this record."""
    try:
        if preset_path(kind, name) is None:
            return False
        keys: dict[str, Any] = model_keys(name) if kind == "models" else gpu_keys(name)
        return validated(type(record), keys) == record
    except GpuledgerError:
        return False
