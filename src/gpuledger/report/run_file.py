"""A resolved run as a short run file: presets by name where they say the same."""

from __future__ import annotations

from typing import Any

import yaml

from ..config.cluster import Cluster, Gpu
from ..config.model import Model
from ..config.presets import preset_path
from ..config.problems import validated
from ..config.run import Run
from ..config.sources import gpu_keys, model_keys
from ..errors import GpuledgerError


def run_file(run: Run) -> str:
    """YAML that resolves to this run."""
    keys = run.model_dump(mode="json")
    if is_preset("models", run.model.name, run.model):
        keys["model"] = run.model.name
    if is_preset("gpus", run.cluster.gpu.name, run.cluster.gpu):
        keys["cluster"]["gpu"] = run.cluster.gpu.name
    for name in ("name", "network_bytes_per_second", "source"):
        if keys["cluster"][name] == Cluster.model_fields[name].default:
            del keys["cluster"][name]
    training = keys["training"]
    if training["loss"] not in ("chunked", "fused_linear"):
        del training["loss_chunks"]  # it would have no effect
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
