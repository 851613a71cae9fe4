"""`estimate --json`: a stable contract. See docs/json.md."""
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..estimate import Estimate, Memory
from ..memory.outside import OutsidePart, Range
from ..memory.peak import Live
from ..memory.states import State
from .step_time import time_content

if TYPE_CHECKING:
    from ..advice import Advice

SCHEMA_VERSION = 1


def estimate_json(estimate: Estimate, advice: tuple[Advice, ...] = ()) -> str:
    """The whole estimate; bytes and FLOPs as integers, null where something is not known."""
    return json.dumps(content(estimate, advice), indent=2)


def content(estimate: Estimate, advice: tuple[Advice, ...] = ()) -> dict[str, Any]:
    """The same as plain Python values."""
    flops = estimate.flops
    return {
        "schema_version": SCHEMA_VERSION,
        "run": estimate.run.model_dump(mode="json"),
        "parameters": {"total": estimate.parameters, "active": estimate.parameters,
                       "per_rank_max": int(estimate.parameters_per_rank)},
        "memory": memory(estimate),
        "flops": {
            "convention": flops.convention,
            "model_flops_per_token": flops.model_flops_per_token,
            "model_flops_per_step": flops.model_flops_per_step,
            "hardware_flops_per_step": flops.hardware_flops_per_step,
            "by_convention": flops.by_convention,
            "dense_peak_flops_per_second": flops.peak_flops_per_second,
            "dtype": flops.dtype},
        "time": time_content(estimate),
        "checkpoint": {"weights_bytes": estimate.checkpoint.weights_bytes,
                       "full_bytes": estimate.checkpoint.full_bytes},
        "entries": entries(estimate),
        "advice": [{"settings": a.change.settings, "costs": list(a.change.costs),
                    "saved_bytes": a.saved_bytes,
                    "device_used_bytes": a.estimate.memory.device_used_bytes,
                    "headroom_bytes": a.estimate.memory.headroom_bytes} for a in advice],
        "assumptions": list(estimate.assumptions),
        "warnings": list(estimate.warnings)}


def memory(estimate: Estimate) -> dict[str, Any]:
    """One row per pipeline stage; the terms of a row add up to its peak_allocated_bytes."""
    m = estimate.memory
    return {"by_stage": [stage_row(stage) for stage in estimate.by_stage],
            "worst_stage": m.stage,
            **outside_range("context", m.outside.context), **outside_range("nccl", m.outside.nccl),
            "outside": [outside_row(part) for part in m.outside.parts],
            "device_used_bytes": m.device_used_bytes,
            "capacity_bytes": m.capacity_bytes, "headroom_bytes": m.headroom_bytes,
            "fits": m.fits, "fits_with_margin": m.fits_with_margin, "may_fit": m.may_fit,
            "num_alloc_retries": m.num_alloc_retries, "host_bytes": m.host.rank_bytes,
            "host_pinned_bytes": m.host.pinned_bytes, "host_node_bytes": m.host.node_bytes}


def outside_range(name: str, nbytes: Range | None) -> dict[str, int | None]:
    """`name_bytes` is what is expected; low and high beside it."""
    low, expected, high = (None, None, None) if nbytes is None else (nbytes.low, nbytes.expected, nbytes.high)
    return {f"{name}_bytes": expected, f"{name}_low_bytes": low, f"{name}_high_bytes": high}


def outside_row(part: OutsidePart) -> dict[str, Any]:
    """The context, or one communicator."""
    nbytes = part.nbytes
    return {"name": part.name, "bytes": nbytes.expected, "low_bytes": nbytes.low,
            "high_bytes": nbytes.high, "equation": part.equation, "detail": part.detail}


def stage_row(m: Memory) -> dict[str, Any]:
    """One stage at its own peak; peak_reserved_bytes is known for the replayed (worst) stage alone."""
    return {"stage": m.stage, **{f"{name}_bytes": value for name, value in m.category_bytes.items()},
            "rounding_bytes": m.rounding_bytes,
            "peak_requested_bytes": m.peak_requested_bytes,
            "peak_allocated_bytes": m.peak_allocated_bytes,
            "peak_reserved_bytes": m.peak_reserved_bytes, "peak_instant": m.peak_instant}


def entries(estimate: Estimate) -> list[dict[str, Any]]:
    """What is live at the peak instant, kind by kind; with rounding they add up to the allocated peak."""
    instant = estimate.memory.peak_instant
    listed: tuple[State | Live, ...] = (*estimate.states, *estimate.live)
    rows = [{"name": e.name, "category": e.category, "instant": instant, "count": e.count,
             "bytes": int(e.nbytes), "flops": None, "equation": e.equation, "detail": e.detail}
            for e in listed]
    rows.append({"name": "allocator rounding and unsplit tails", "category": "buffers",
                 "instant": instant, "count": 1, "bytes": estimate.memory.rounding_bytes, "flops": None,
                 "equation": "A1", "detail": "requests rounded up to 512 bytes; tails that are not split"})
    return rows
