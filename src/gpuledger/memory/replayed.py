"""A whole run, replayed through the model of PyTorch's caching allocator: allocated and reserved bytes."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.config.run import Run
from gpuledger.program.device import Device

from .allocator import AllocatorSettings, OutOfMemory
from .allocator.allocator import DEFAULT_SETTINGS
from .allocator.repetition import Part, Repeat, replay_parts
from .ledger import Memory
from .repeated import Repetitions
from .run import rank_programs, whole_run
from .step import RankRunner

STEPS = 3          # the first makes states and workspaces, the second settles the cache, the third repeats


@dataclass(frozen=True)
class Replayed:
    """Peaks over a run of STEPS steps from an empty allocator, and whether the GPU's memory was enough.

    peak_allocated_bytes is the peak of the last step, peak_reserved_bytes that of the whole run.
    num_alloc_retries counts how often the cache had to be given back to make room.
    """

    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    segments: int
    num_alloc_retries: int
    out_of_memory: bool


def replay_run(run: Run, device: Device, settings: AllocatorSettings = DEFAULT_SETTINGS,
               available_bytes: int | None = None, stage: int = 0) -> Replayed:
    """All layers of a stage, all steps. If `available_bytes` are not enough the peaks are those without a limit."""
    runner = whole_run(run, rank_programs(run, device, stage), 1, stage, abridged=True)
    parts, streams = _parts(runner), runner.memory.streams
    unlimited = _peaks(parts, streams, settings, None)
    if available_bytes is None or unlimited.peak_reserved_bytes <= available_bytes:
        return unlimited
    try:
        limited = _peaks(parts, streams, settings, available_bytes)
    except OutOfMemory:
        return Replayed(unlimited.peak_requested_bytes, unlimited.peak_allocated_bytes,
                        unlimited.peak_reserved_bytes, unlimited.segments, 0, True)
    return limited


def _parts(runner: RankRunner) -> list[Part]:
    """The events of STEPS steps, of which `runner` has run the first.

    A step that leaves the ledger as it found it would be walked alike again: it is repeated.
    """
    memory = runner.memory
    repetitions = runner.repetitions or Repetitions(memory)
    found, start = _living(memory), len(memory.events)
    runner.step()
    if _living(memory) == found:
        return [*repetitions.parts(0, start), Repeat(repetitions.parts(start), STEPS - 1)]
    for _ in range(STEPS - 2):
        runner.step()
    return repetitions.parts()


def _living(memory: Memory) -> list[int]:
    return [number for number, holders in enumerate(memory.holders) if holders]


def _peaks(parts: list[Part], streams: Mapping[int, int], settings: AllocatorSettings,
           available_bytes: int | None) -> Replayed:
    allocator = replay_parts(parts, settings, available_bytes, streams=streams)
    stats = allocator.memory_stats()
    return Replayed(
        peak_requested_bytes=stats["requested_bytes.all.peak"],
        peak_allocated_bytes=stats["allocated_bytes.all.peak"],
        peak_reserved_bytes=stats["reserved_bytes.all.peak"],
        segments=stats["segment.all.peak"],
        num_alloc_retries=stats["num_alloc_retries"],
        out_of_memory=False)
