"""PyTorch's own memory viewer opens our snapshots (torch/cuda/_memory_viz.py, run as a script)."""
from __future__ import annotations

import base64
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpuledger.memory.allocator import AllocatorSettings, CachingAllocator
from gpuledger.memory.snapshot import run_with_history, snapshot, write_snapshot

VIEWER = Path(torch.__file__).parent / "cuda" / "_memory_viz.py"
MIB = 2**20
LABELS = ["blocks.0/attention/scores", "loss", "logits"]
EVENTS = [(1, 0, 90 * MIB), (1, 1, 700), (-1, 0, 90 * MIB), (1, 2, 45 * MIB)]


@pytest.fixture(params=[False, True], ids=["segments", "expandable"])
def allocator(request: pytest.FixtureRequest) -> CachingAllocator:
    allocator = CachingAllocator(
        AllocatorSettings(expandable_segments=request.param), total_bytes=2**30)
    run_with_history(EVENTS, LABELS, allocator)
    return allocator


def view(*arguments: str | Path) -> str:
    command = [sys.executable, str(VIEWER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_stats(allocator: CachingAllocator, tmp_path: Path) -> None:
    """The viewer adds up segments, blocks and roundings, and refuses a snapshot that does not."""
    text = view("stats", write_snapshot(tmp_path / "run.pickle", allocator))
    reserved = 102.0 if allocator.heap.settings.expandable_segments else 92.0
    assert "segments: 2" in text
    assert f"total_reserved: {reserved}MiB" in text
    assert "total_allocated: 45.0MiB" in text


def test_trace(allocator: CachingAllocator, tmp_path: Path) -> None:
    text = view("trace", write_snapshot(tmp_path / "run.pickle", allocator))
    assert "7 entries" in text
    assert "free completed" in text


@pytest.mark.parametrize("plot", ["trace_plot", "segment_plot"])
def test_plots_hold_the_whole_snapshot(
    plot: str, allocator: CachingAllocator, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    view(plot, write_snapshot(tmp_path / "run.pickle", allocator), "-o", page)
    files = re.search(r"const local_files = (.*)", page.read_text())
    assert files
    data = base64.b64decode(json.loads(files[1])[0]["base64"])
    assert pickle.loads(data) == snapshot(allocator)
