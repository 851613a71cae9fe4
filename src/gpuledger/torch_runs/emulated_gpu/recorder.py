"""Watches PyTorch's allocator while the user's program runs, and writes down what it saw.

It reads statistics and the allocator's own history; it allocates nothing on the device.
"""
from __future__ import annotations

import ctypes
import json
import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...files import write_whole
from .growth import Mark, growth
from .memory_history import Block, Event, by_line, peak, source_line
from .patches import Patch

COUNTERS = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
TOP = 10

PEAKS_PATCH = Patch(
    "reset_peak_memory_stats",
    "Peaks are noted before the program resets them.",
    "The report's peaks are those of the whole run.",
)


class Recorder:
    """Between ``start`` and ``stop``: peaks that survive a reset, steps, and every OOM."""

    def __init__(self, max_events: int) -> None:
        self.max_events = max_events
        self.marks: dict[int, list[list[Mark]]] = defaultdict(list)  # by optimizer; one per device
        self.peaks: dict[int, dict[str, int]] = defaultdict(dict)
        self.ooms: list[dict[str, Any]] = []
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=self.max_events)
        bindings: Any = torch._C
        bindings._cuda_attach_out_of_memory_observer(self._on_oom)
        handle = register_optimizer_step_post_hook(self._on_step)
        self._undo.append(handle.remove)
        for name in ("reset_peak_memory_stats", "reset_max_memory_allocated",
                     "reset_max_memory_cached"):
            self._keep_peaks_before(name)

    def _keep_peaks_before(self, name: str) -> None:
        """A program that resets its peaks must not reset ours."""
        original = getattr(torch.cuda, name)

        def keep_and_reset(*arguments: Any, **options: Any) -> Any:
            self._keep_peaks()
            return original(*arguments, **options)

        for module in (torch.cuda, torch.cuda.memory):
            setattr(module, name, keep_and_reset)

    def stop(self) -> None:
        for undo in self._undo:
            undo()
        self._keep_peaks()

    def _keep_peaks(self) -> None:
        for device in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(device)
            for counter in COUNTERS:
                seen = int(stats.get(f"{counter}.all.peak", 0))
                self.peaks[device][counter] = max(seen, self.peaks[device].get(counter, 0))

    def _on_step(self, optimizer: Any, *_: Any) -> None:
        # The history's own clock: microseconds since the epoch.
        now_us = time.time_ns() // 1000
        marks = []
        for device in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(device)
            marks.append(Mark(now_us, stats.get("requested_bytes.all.current", 0),
                              stats.get("allocated_bytes.all.current", 0)))
        self.marks[id(optimizer)].append(marks)

    def _on_oom(self, device: int, wanted: int, total: int, free: int) -> None:
        """Called by the allocator before it raises: what is alive now, by source line."""
        stats = torch.cuda.memory_stats(device)
        blocks = [
            Block(block["requested_size"], 0, source_line(block.get("frames", ())))
            for segment in torch.cuda.memory_snapshot() if segment["device"] == device
            for block in segment["blocks"] if block["state"] == "active_allocated"
        ]
        self.ooms.append({
            "device": device,
            "step": self._step_count() + 1,
            "wanted_bytes": wanted,
            "device_free_bytes": free,
            "device_total_bytes": total,
            "allocated_bytes": stats["allocated_bytes.all.current"],
            "reserved_bytes": stats["reserved_bytes.all.current"],
            "line": _calling_line(),
            "top_allocations": [asdict(holding) for holding in by_line(blocks)[:TOP]],
        })

    def _step_marks(self) -> list[list[Mark]]:
        """The marks of the optimizer that stepped most: one step is one of its steps."""
        return max(self.marks.values(), key=len, default=[])

    def _step_count(self) -> int:
        return len(self._step_marks())

    def write(self, path: Path, snapshot: str | None, patches: list[Patch],
              error: str | None) -> None:
        """Writes the report (JSON) and, where asked, a snapshot for PyTorch's memory viewer."""
        history = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        if snapshot:
            write_whole(snapshot, pickle.dumps(history))
        traces = history["device_traces"]
        content = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "error": error,
            "devices": [self._device(index, traces[index] if index < len(traces) else [])
                        for index in range(torch.cuda.device_count()) if self._was_used(index)],
            "steps": self._step_count(),
            "ooms": self.ooms,
            "patches": [asdict(patch) for patch in (*patches, PEAKS_PATCH)],
            "nccl": {"communicators": _communicators()},
        }
        write_whole(path, json.dumps(content))

    def _was_used(self, device: int) -> bool:
        return bool(self.peaks[device].get("reserved_bytes") or any(
            oom["device"] == device for oom in self.ooms))

    def _device(self, index: int, events: list[Event]) -> dict[str, Any]:
        free, total = torch.cuda.mem_get_info(index)
        stats = torch.cuda.memory_stats(index)
        marks = [step[index] for step in self._step_marks()]
        at_peak = peak(events)
        requested = self.peaks[index]["requested_bytes"]
        whole = at_peak is not None and at_peak.requested_bytes == requested
        found = growth(marks, events)
        return {
            "index": index,
            "name": torch.cuda.get_device_name(index),
            "total_bytes": total,
            "free_bytes": free,
            **{f"peak_{counter}": self.peaks[index][counter] for counter in COUNTERS},
            **{f"end_{counter}": stats[f"{counter}.all.current"] for counter in COUNTERS},
            "num_alloc_retries": stats["num_alloc_retries"],
            "num_ooms": stats["num_ooms"],
            "peak": {
                "line": at_peak.line,
                "step": 1 + sum(mark.time_us < at_peak.time_us for mark in marks),
                "holdings": [asdict(holding) for holding in at_peak.holdings[:TOP]],
            } if at_peak and whole else None,
            "growth": asdict(found) if found else None,
            "memory_stats": stats,
        }


def _calling_line() -> str:
    """The source line of the user's program that is running now; autograd's thread has none."""
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        frames.append({"filename": frame.f_code.co_filename, "line": frame.f_lineno,
                       "name": frame.f_code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return source_line(frames)


def _communicators() -> list[int]:
    """Ranks of each NCCL communicator; 0 for a split one, whose size only torch knows."""
    library = ctypes.CDLL(None)
    sizes = (ctypes.c_int * 4096)()
    count = library.gpuledger_emulated_communicators(sizes, len(sizes))
    return list(sizes[:count])
