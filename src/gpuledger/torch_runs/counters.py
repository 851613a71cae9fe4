"""PyTorch's allocator counters at the boundaries of a step, and their peaks between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

COUNTERS = {
    "requested_bytes": "requested_bytes.all",
    "allocated_bytes": "allocated_bytes.all",
    "active_bytes": "active_bytes.all",
    "reserved_bytes": "reserved_bytes.all",
    "inactive_split_bytes": "inactive_split_bytes.all",
    "segments": "segment.all",
}


@dataclass(frozen=True)
class Boundary:
    """Counters at a boundary, and their peaks since the boundary before it."""

    step: int                               # 0: before the first step
    instant: str
    current: dict[str, int]
    peak: dict[str, int]


class CounterMeter:
    """Called with the name of each boundary, it reads the counters and starts new peaks.

    The first peaks count from its making.
    """

    def __init__(self) -> None:
        self.step = 0
        self.boundaries: list[Boundary] = []
        torch.cuda.reset_peak_memory_stats()

    def __call__(self, instant: str) -> None:
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        current = {name: stats[f"{key}.current"] for name, key in COUNTERS.items()}
        peak = {name: stats[f"{key}.peak"] for name, key in COUNTERS.items()}
        self.boundaries.append(Boundary(self.step, instant, current, peak))
        torch.cuda.reset_peak_memory_stats()

    def next_step(self) -> None:
        """The boundaries that follow belong to the next step."""
        self.step += 1
