"""Snapshots: PyTorch's keys, and what the viewer in the browser can read.

tests/torch_cpu/test_memory_viewer.py runs PyTorch's viewer on them.
"""
from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest

from gpuledger.errors import InputError
from gpuledger.memory.allocator import AllocatorSettings, CachingAllocator, Event, replay
from gpuledger.memory.allocator.sizes import MIB
from gpuledger.memory.snapshot import frames, run_with_history, snapshot, write_snapshot

EVENTS: list[Event] = [(1, 0, 30 * MIB), (1, 1, 700), (-1, 0, 30 * MIB), (1, 2, 5 * MIB)]
LABELS = ["blocks.3/attention/scores", "loss", "logits"]
# what `unpickle` in torch/utils/viz/MemoryViz.js knows
VIEWER_OPCODES = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME",
    "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP",
    "TUPLE2", "APPEND", "NEWFALSE", "BINPUT", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE",
    "BINFLOAT", "TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM",
}


def recorded(total_bytes: int | None = None, **settings: Any) -> CachingAllocator:
    allocator = CachingAllocator(AllocatorSettings(**settings), total_bytes)
    run_with_history(EVENTS, LABELS, allocator)
    return allocator


def test_keys_are_pytorchs() -> None:
    content = snapshot(recorded())
    assert sorted(content) == [
        "allocator_settings", "device_traces", "external_annotations", "host_segments",
        "host_traces", "segments"]
    assert set(content["segments"][0]) == {
        "active_size", "address", "allocated_size", "blocks", "device", "frames", "is_expandable",
        "requested_size", "segment_pool_id", "segment_type", "stream", "total_size"}
    assert set(content["segments"][0]["blocks"][0]) == {
        "address", "frames", "requested_size", "size", "state"}
    assert set(content["device_traces"][0][0]) == {
        "action", "addr", "compile_context", "frames", "pool_id", "size", "stream", "time_us",
        "user_metadata"}
    assert content["allocator_settings"]["max_split_size"] == -1


def test_segments_and_events() -> None:
    content = snapshot(recorded())
    large, small = content["segments"]
    assert (large["total_size"], large["allocated_size"], large["segment_type"]) == (
        30 * MIB, 5 * MIB, "large")
    assert (small["total_size"], small["requested_size"]) == (2 * MIB, 700)
    assert [(e["action"], e["size"]) for e in content["device_traces"][0]] == [
        ("segment_alloc", 30 * MIB), ("alloc", 30 * MIB), ("segment_alloc", 2 * MIB),
        ("alloc", 700), ("free_requested", 30 * MIB), ("free_completed", 30 * MIB),
        ("alloc", 5 * MIB)]


def test_frames_name_the_tensor_and_its_parts() -> None:
    assert frames("blocks.3/attention/scores") == [
        {"filename": "blocks.3/attention", "line": 0, "name": "scores"},
        {"filename": "blocks.3", "line": 0, "name": "attention"},
        {"filename": "", "line": 0, "name": "blocks.3"},
    ]
    assert frames("") == []
    events = snapshot(recorded())["device_traces"][0]
    assert events[1]["frames"] == events[4]["frames"] == frames("blocks.3/attention/scores")
    blocks = [b for s in snapshot(recorded())["segments"] for b in s["blocks"]]
    assert [b["frames"][0]["name"] if b["frames"] else None for b in blocks] == [
        "logits", None, "loss", None]


def test_where_memory_runs_out_the_snapshot_ends() -> None:
    allocator = CachingAllocator(total_bytes=31 * MIB)
    error = run_with_history(EVENTS, LABELS, allocator)
    assert error is not None and error.figures.requested_bytes == 2 * MIB
    last = snapshot(allocator)["device_traces"][0][-1]
    assert last["action"] == "oom"
    assert last["device_free"] == MIB
    assert last["frames"][0]["name"] == "loss"
    assert "addr" not in last


def test_settings() -> None:
    allocator = recorded(
        expandable_segments=True, max_split_size_bytes=64 * MIB,
        roundup_power2_divisions=(4,) * 16, total_bytes=100 * MIB)
    seen = snapshot(allocator)["allocator_settings"]
    assert seen["expandable_segments"] is True
    assert seen["max_split_size"] == 64 * MIB
    assert seen["roundup_power2_divisions"]["1024"] == 4
    assert seen["PYTORCH_CUDA_ALLOC_CONF"].startswith("expandable_segments:True,max_split_size_mb:")
    assert all(s["is_expandable"] for s in snapshot(allocator)["segments"])


def test_without_history_there_are_segments_only() -> None:
    content = snapshot(replay(EVENTS))
    assert content["device_traces"] == [[]]
    assert len(content["segments"]) == 2


def test_the_file_is_read_by_the_viewer(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path / "run.pickle", recorded())
    data = path.read_bytes()
    assert pickle.loads(data) == snapshot(recorded())
    opcodes = list(pickletools.genops(data))
    assert opcodes[0][0].name == "PROTO" and opcodes[0][1] == 4
    assert {opcode.name for opcode, _, _ in opcodes} <= VIEWER_OPCODES
    assert [file.name for file in tmp_path.iterdir()] == ["run.pickle"]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write_snapshot(tmp_path / "missing" / "run.pickle", recorded())
