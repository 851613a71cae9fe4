"""A reconciliation as JSON: by_stage has the keys of `estimate --json`, on both sides."""

from __future__ import annotations

from typing import Any

from ..memory.instants import StepAccount
from ..torch_runs.reconcile import Reconciliation

SCHEMA_VERSION = 1


def reconciliation_content(result: Reconciliation) -> dict[str, Any]:
    """Bytes as integers; a side that does not know a row has null there."""
    return {
        "by_stage": [{"stage": 0, "estimated": stage(result.estimated),
                      "measured": stage(result.measured)}],
        "rows": [{"instant": row.instant, "item": row.item, "estimated_bytes": row.estimated_bytes,
                  "measured_bytes": row.measured_bytes, "difference_bytes": row.difference_bytes}
                 for row in result.rows],
        "unexplained_bytes": result.unexplained_bytes,
        "exact": result.exact,
    }


def stage(account: StepAccount) -> dict[str, Any]:
    """The terms add up to peak_allocated_bytes: rounding and unsplit tails belong to buffers."""
    bridge = account.bridge
    rounding = bridge.allocated_bytes - account.peak.requested_bytes
    terms = {f"{name}_bytes": nbytes for name, nbytes in account.peak.category_bytes.items()}
    terms["buffers_bytes"] += rounding
    return {
        **terms,
        "rounding_bytes": rounding,
        "peak_requested_bytes": bridge.requested_bytes,
        "peak_allocated_bytes": bridge.allocated_bytes,
        "peak_reserved_bytes": bridge.reserved_bytes,
        "peak_instant": account.peak.phase,
    }
