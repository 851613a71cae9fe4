"""The stream of a run that never ran, with names: as JSON lines, and as a snapshot for PyTorch's memory viewer."""
from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from gpuledger.config.run import Run
from gpuledger.files import write_whole
from gpuledger.program.device import Device

from .allocator import AllocatorSettings, CachingAllocator
from .run import rank_programs, whole_run
from .snapshot import run_with_history, write_snapshot
from .step import RankRunner

STEPS = 2          # the first makes states and workspaces, the second is steady


class NamedStream:
    """The events of a run of STEPS steps from an empty allocator, and where in it each belongs."""

    def __init__(self, run: Run, device: Device):
        self.runner: RankRunner = whole_run(run, rank_programs(run, device), STEPS)
        self.memory = self.runner.memory
        timeline = self.runner.timeline
        self.starts = [start for start, _ in timeline.positions]
        self.steps = [step for _, step in timeline.positions]
        self.mark_starts = [start for start, _ in timeline.marks]
        self.phases = [phase for _, phase in timeline.marks]

    def where(self, event: int) -> tuple[str, ...]:
        """Phase, outermost part and operator during which this event happens."""
        mark = bisect_right(self.mark_starts, event) - 1
        if mark < 0:
            return ("model creation",)
        phase, step = self.phases[mark], None
        position = bisect_right(self.starts, event) - 1
        if position >= 0 and self.starts[position] >= self.mark_starts[mark]:
            step = self.steps[position]
        if step is None:
            return (phase,)
        return (phase, step.group.name if step.group else "step", step.op.name)

    def labels(self) -> list[str]:
        """For each allocation number: where it is made, and the tensor's name, outermost first."""
        labels: list[str] = []
        for event, (sign, number, _) in enumerate(self.memory.events):
            if sign > 0:
                labels.append("/".join((*self.where(event), self.memory.tensors[number].name)))
        return labels

    def lines(self) -> Iterator[str]:
        """One JSON object an event: action, number, bytes, tensor, category, where."""
        memory = self.memory
        for event, (sign, number, nbytes) in enumerate(memory.events):
            tensor = memory.tensors[number]
            yield json.dumps({
                "action": "allocate" if sign > 0 else "free", "number": number, "bytes": int(nbytes),
                "tensor": tensor.name, "shape": [int(n) for n in tensor.shape], "dtype": tensor.dtype,
                "category": memory.categories[number], "where": "/".join(self.where(event))})


def write_events(run: Run, device: Device, path: Path) -> None:
    """The stream as JSON lines. Raises InputError where it cannot be written."""
    write_whole(path, "\n".join(NamedStream(run, device).lines()) + "\n")


def write_run_snapshot(run: Run, device: Device, settings: AllocatorSettings, path: Path) -> None:
    """A snapshot pickle of the end of the run, history included, on a GPU of unlimited memory."""
    stream = NamedStream(run, device)
    allocator = CachingAllocator(settings, None)
    run_with_history(stream.memory.events, stream.labels(), allocator)
    write_snapshot(path, allocator)
