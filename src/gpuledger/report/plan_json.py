"""A plan as JSON: the question, the space, the best layouts, the front, and why others are not there."""

from __future__ import annotations

import json
from typing import Any

from ..planner.plan import Answer, front_of
from ..planner.search import Plan
from .plan_table import days_of
from .step_time import utilization

SCHEMA_VERSION = 1


def plan_json(answer: Answer) -> str:
    """The document. Bytes are integers; null is what is not known."""
    return json.dumps(plan_content(answer), indent=1)


def plan_content(answer: Answer) -> dict[str, Any]:
    """The same as plain values."""
    question, table = answer.question, answer.table
    return {
        "schema_version": SCHEMA_VERSION,
        "question": {
            "run": question.run.model_dump(mode="json"), "gpus": list(question.gpus),
            "by": question.by, "tokens": question.tokens, "days": question.days,
            "price_per_gpu_hour": question.price,
            "headroom_percent": question.headroom_percent,
        },
        "space": {
            "axes": {name: [_value(v) for v in values] for name, values in table.spaces[0].axes()},
            "frameworks": list(table.frameworks), "layouts": len(table.seconds),
            "fitting": answer.fitting, "in_time": answer.in_time, "tied_with_best": answer.tied,
            "without_layout": dict(answer.dropped), "looked_at": answer.looked_at,
            "rejected": dict(answer.rejected),
        },
        "fits": bool(answer.plans),
        "plans": [content_of(answer, plan) for plan in answer.plans],
        "closest": [content_of(answer, plan) for plan in answer.over],
        "pareto": [layout_content(answer, int(i)) for i in front_of(answer)],
    }  # fmt: skip


def layout_content(answer: Answer, number: int) -> dict[str, Any]:
    """One layout of the table, without a framework's buffers."""
    table = answer.table
    row = table.layouts.row(number)
    row["recompute"] = _value(table.spaces[0].recompute[row["recompute"]])
    return {
        **row, "framework": table.frameworks[int(table.framework[number])],
        "step_seconds": float(table.seconds[number]),
        "neutral_allocated_bytes": int(table.allocated_bytes[number]),
    }  # fmt: skip


def content_of(answer: Answer, plan: Plan) -> dict[str, Any]:
    """One plan: layout, run, memory of the fullest GPU, time."""
    memory, time = plan.estimate.memory, plan.time
    mfu, hfu = utilization(plan.estimate, time)
    days = None if answer.question.tokens is None else days_of(answer, plan)
    return {
        "layout": layout_content(answer, plan.number), "run": plan.run.model_dump(mode="json"),
        "memory": {
            "stage": memory.stage, "peak_requested_bytes": memory.peak_requested_bytes,
            "peak_allocated_bytes": memory.peak_allocated_bytes,
            "peak_reserved_bytes": memory.peak_reserved_bytes, "peak_instant": memory.peak_instant,
            "device_used_bytes": memory.device_used_bytes, "capacity_bytes": memory.capacity_bytes,
            "headroom_bytes": memory.headroom_bytes, "fits": memory.fits,
        },
        "time": {
            "step_seconds": time.step_seconds, "low_seconds": time.error.low_seconds,
            "high_seconds": time.error.high_seconds, "mfu": mfu, "hfu": hfu,
            "tokens_per_second_per_gpu": time.tokens_per_second_per_gpu,
            "breakdown": {name: float(value) for name, value in time.breakdown.terms.items()},
            "days": days, "gpu_hours": None if days is None else days * 24 * plan.run.cluster.gpus,
        },
    }  # fmt: skip


def _value(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else value.model_dump(mode="json")
