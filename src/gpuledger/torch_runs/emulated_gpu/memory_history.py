"""PyTorch's memory history, read: what was alive at the peak, and what outlived its step. No torch.

An event is a dict of ``torch.cuda.memory._snapshot()["device_traces"][device]``: ``action`` (alloc,
free_completed, ...), ``addr``, ``size`` in requested bytes, ``time_us``, and ``frames``, innermost
first, each with ``filename``, ``line`` and ``name``.
"""
from __future__ import annotations

import os
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]

LIBRARY_FOLDERS = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
PACKAGE_FOLDER = str(Path(__file__).resolve().parents[2])
BACKWARD = "backward (autograd's own thread)"


@dataclass(frozen=True)
class Holding:
    """What one source line holds: requested bytes, in so many blocks."""

    line: str
    requested_bytes: int
    blocks: int


@dataclass(frozen=True)
class Peak:
    """The instant with the most requested bytes alive; ``line`` is where it was reached."""

    requested_bytes: int
    time_us: int
    line: str
    holdings: tuple[Holding, ...]


@dataclass(frozen=True)
class Block:
    """An allocation that is alive."""

    requested_bytes: int
    time_us: int
    line: str


def source_line(frames: Sequence[Mapping[str, Any]]) -> str:
    """``file:line function`` of the innermost frame that is neither a library's nor ours.

    Without any, the innermost frame there is; without Python frames, autograd's backward thread.
    """
    own = next((frame for frame in frames if not _is_library(frame["filename"])), None)
    frame = own or next((frame for frame in frames if frame["filename"]), None)
    if frame is None:
        return BACKWARD
    return f"{_shown_path(frame['filename'])}:{frame['line']} {frame['name']}"


def _is_library(filename: str) -> bool:
    if not filename or filename.startswith("<frozen"):
        return True
    in_library = filename.startswith(LIBRARY_FOLDERS) or "site-packages" in filename
    return in_library or filename.startswith(PACKAGE_FOLDER + os.sep)


def _shown_path(filename: str) -> str:
    here = os.getcwd() + os.sep
    return filename[len(here):] if filename.startswith(here) else filename


def live_blocks(events: Iterable[Event], until_us: int | None = None) -> list[Block]:
    """Blocks alive after the last event at or before ``until_us`` (default: the last event)."""
    alive: dict[int, Event] = {}
    for event in events:
        if until_us is not None and event["time_us"] > until_us:
            break
        _apply(event, alive)
    return [_block(event) for event in alive.values()]


def peak(events: Sequence[Event]) -> Peak | None:
    """The peak of requested bytes, and what was alive then, by source line; None without events."""
    alive: dict[int, Event] = {}
    current = highest = 0
    at: Event | None = None
    for event in events:
        current += _apply(event, alive)
        if current > highest:
            highest, at = current, event
    if at is None:
        return None
    alive.clear()
    for event in events:
        _apply(event, alive)
        if event is at:
            break
    holdings = by_line(_block(event) for event in alive.values())
    return Peak(highest, at["time_us"], source_line(at["frames"]), holdings)


def _apply(event: Event, alive: dict[int, Event]) -> int:
    """Updates the live blocks; the change in requested bytes.

    A block that another stream still uses is freed later than asked; PyTorch counts its requested
    bytes until then (``free_completed``).
    """
    if event["action"] == "alloc":
        alive[event["addr"]] = event
        return int(event["size"])
    if event["action"] == "free_completed":
        before = alive.pop(event["addr"], None)
        return -int(before["size"]) if before else 0
    return 0


def _block(event: Event) -> Block:
    return Block(int(event["size"]), int(event["time_us"]), source_line(event["frames"]))


def by_line(blocks: Iterable[Block]) -> tuple[Holding, ...]:
    """The blocks grouped by source line, the largest first."""
    size: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for block in blocks:
        size[block.line] += block.requested_bytes
        count[block.line] += 1
    return tuple(Holding(line, size[line], count[line]) for line, _ in size.most_common())
