"""What the allocator did, event by event, with the actions of PyTorch's memory history."""
from __future__ import annotations

from typing import Literal, NamedTuple

Action = Literal[
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom",
]


class TraceEntry(NamedTuple):
    """One event. For `oom`, `address` holds the device's free bytes, as in PyTorch."""

    action: Action
    address: int
    size: int
    stream: int
    label: str
