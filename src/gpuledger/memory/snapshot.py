"""A memory snapshot of a run that never ran, for PyTorch's own viewer.

The pickle has the format of `torch.cuda.memory._dump_snapshot()`: https://pytorch.org/memory_viz
and `torch/cuda/_memory_viz.py` open it. Frames name the tensor and its parts instead of source
lines, and time counts events instead of microseconds.
Ref: torch/csrc/cuda/memory_snapshot.cpp, torch/utils/viz/MemoryViz.js, PyTorch 2.14.
"""
from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gpuledger.files import write_whole

from .allocator import (
    AllocatorSettings,
    BlockRecord,
    CachingAllocator,
    Event,
    OutOfMemory,
    SegmentRecord,
    TraceEntry,
    alloc_conf_text,
    replay,
)
from .allocator.settings import UNLIMITED_BYTES

LABEL_SEPARATOR = "/"
_PICKLE_PROTOCOL = 4            # the viewer in the browser reads protocols 2 to 4
_DEVICE = 0
_DEFAULT_POOL = (0, 0)          # not a CUDA graph's private pool


def run_with_history(
    events: Iterable[Event], labels: Sequence[str], allocator: CachingAllocator
) -> OutOfMemory | None:
    """Replay events with recorded history; where memory runs out, stop there and say so.

    labels: for each allocation number, parts and tensor, outermost first:
    "blocks.3/attention/scores".
    """
    allocator.record_history()
    try:
        replay(events, labels=labels, allocator=allocator)
    except OutOfMemory as error:
        return error
    return None


def snapshot(allocator: CachingAllocator) -> dict[str, Any]:
    """What `torch.cuda.memory._snapshot()` returns; without recorded history, no device traces."""
    settings = allocator.heap.settings
    history = allocator.heap.history or []
    return {
        "segments": [_segment(segment) for segment in allocator.segments()],
        "device_traces": [[_event(entry, time) for time, entry in enumerate(history)]],
        "allocator_settings": _settings(settings),
        "external_annotations": [],
        "host_segments": [],
        "host_traces": [],
    }


def write_snapshot(path: str | Path, allocator: CachingAllocator) -> Path:
    """Write the snapshot as a pickle, whole or not at all. Raises InputError if it cannot."""
    return write_whole(path, pickle.dumps(snapshot(allocator), protocol=_PICKLE_PROTOCOL))


@cache
def frames(label: str) -> list[dict[str, Any]]:
    """The call stack that a label stands for, innermost (the tensor) first."""
    parts = [part for part in label.split(LABEL_SEPARATOR) if part]
    return [
        {"filename": LABEL_SEPARATOR.join(parts[:depth]), "line": 0, "name": parts[depth]}
        for depth in reversed(range(len(parts)))
    ]


def _segment(segment: SegmentRecord) -> dict[str, Any]:
    return {
        "device": _DEVICE,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": segment.allocated_bytes,
        "active_size": segment.active_bytes,
        "requested_size": segment.requested_bytes,
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": _DEFAULT_POOL,
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [_block(block) for block in segment.blocks],
    }


def _block(block: BlockRecord) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested_bytes,
        "state": block.state,
        "frames": [] if block.state == "inactive" else frames(block.label),
    }


def _event(entry: TraceEntry, time: int) -> dict[str, Any]:
    return {
        "action": entry.action,
        "device_free" if entry.action == "oom" else "addr": entry.address,
        "size": entry.size,
        "stream": entry.stream,
        "time_us": time,
        "frames": frames(entry.label),
        "pool_id": _DEFAULT_POOL,
        "compile_context": "N/A",
        "user_metadata": "",
    }


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    limit = settings.max_split_size_bytes
    return {
        "PYTORCH_CUDA_ALLOC_CONF": alloc_conf_text(settings),
        "max_split_size": -1 if limit == UNLIMITED_BYTES else limit,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "max_round_threshold": -1,
        "max_cached_size": -1,
        "roundup_power2_divisions": {
            str(2**i): steps for i, steps in enumerate(settings.roundup_power2_divisions)
        },
    }
