"""Efficiency data: by GPU, by architecture, by software, and NCCL's constants."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Any

from ...config.cluster import Gpu
from ...config.efficiency import Efficiency, Nccl
from ...config.presets import presets_folder
from ...config.problems import validated
from ...config.reading import read_file
from ...errors import InputError
from .inputs import Software

MATMUL_SHARE = 271.2 / 312
"""Best measured product over dense peak of an A100, for GPUs of which no product was measured."""


@lru_cache(maxsize=8)
def data(name: str) -> dict[str, Any]:
    """The file presets/efficiency/<name>.yaml."""
    return read_file(presets_folder() / "efficiency" / f"{name}.yaml")


def architecture_of(gpu: Gpu) -> str:
    """The family whose curves a GPU takes: compute capability 8.0, 9.0, 10; else `other`."""
    capability = gpu.compute_capability
    if gpu.vendor != "nvidia" or capability is None:
        return "other"
    if capability == (8, 0):
        return "ampere"
    return {9: "hopper", 10: "blackwell"}.get(capability[0], "other")


def efficiency_of(gpu: Gpu) -> Efficiency:
    """What the GPU's own record measured, over the best products known of it, over its
    architecture."""
    architecture = validated(Efficiency, data("architectures")[architecture_of(gpu)])
    best = data("gpus")["best_matmul_flops_per_second"].get(gpu.name, {})
    known = Efficiency(
        best_matmul_flops_per_second={k: float(v) for k, v in best.items()},
        sources={"best_matmul_flops_per_second": data("gpus")["source"]} if best else {},
    )
    found = known.over(architecture)
    return gpu.efficiency.over(found) if gpu.efficiency else found


@lru_cache(maxsize=1)
def nccl() -> Nccl:
    """NCCL's latencies and bandwidth shares."""
    return validated(Nccl, data("nccl"))


def software(profile: str, *, host_seconds: float, **changes: Any) -> Software:
    """A profile of presets/efficiency/frameworks.yaml on a host. Raises InputError if there is
    none."""
    profiles = data("frameworks")
    if profile not in profiles:
        raise InputError(
            f"there is no software profile {profile!r}", f"use one of {', '.join(profiles)}"
        )
    known = {field.name for field in fields(Software)}
    values = {key: value for key, value in profiles[profile].items() if key in known}
    return Software(**{**values, "host_seconds": host_seconds, **changes})
