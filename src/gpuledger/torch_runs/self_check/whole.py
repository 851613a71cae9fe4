"""Whole runs from an empty allocator, each in a process of its own: streams and statistics.

PyTorch is imported once and the process forked before it touches the device.
"""
from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from gpuledger.config.run import Run
from gpuledger.memory.allocator import replay
from gpuledger.memory.run import whole_run
from gpuledger.program.device import Device
from gpuledger.program.model import build
from gpuledger.torch_runs.stream import record_stream_of_run

from .compare import first_difference

STEPS = 3
# what the allocator asks the driver for, for requests of 1 to 10 MiB
SEGMENT_BYTES = 20 * 2**20
# Counters of moments and of what the emulated driver does, which a replay of the stream cannot
# repeat.
RESERVED = ("reserved_bytes", "segment", "inactive_split", "num_device")


@dataclass(frozen=True)
class WholeRun:
    """stream: None, or where the streams part. statistics: those that differ, as (engine, PyTorch).

    reserved: the same for reserved bytes, segments and split blocks, which depend on addresses too.
    """

    stream: str | None
    statistics: dict[str, tuple[int, int]]
    reserved: dict[str, tuple[int, int]]

    @property
    def equal(self) -> bool:
        """Stream and statistics are PyTorch's, reserved bytes within one segment."""
        peaks = self.reserved.get("reserved_bytes.all.peak", (0, 0))
        return (self.stream is None and not self.statistics
                and abs(peaks[0] - peaks[1]) <= SEGMENT_BYTES)


def compare_whole_run(run: Run) -> WholeRun:
    """Must be the first thing that a process does on the device."""
    truth = record_stream_of_run(run, STEPS)
    properties = torch.cuda.get_device_properties(0)
    device = Device((properties.major, properties.minor), properties.multi_processor_count)
    runner = whole_run(run, build(run.model, run.training, device), STEPS)
    difference = first_difference(runner.memory.events, truth["events"])
    mine, theirs = replay(runner.memory.events).memory_stats(), truth["memory_stats"]
    differing = {name: (int(mine[name]), int(theirs[name]))
                 for name in mine if name in theirs and mine[name] != theirs[name]}
    return WholeRun(
        str(difference) if difference else None,
        {name: pair for name, pair in differing.items() if not name.startswith(RESERVED)},
        {name: pair for name, pair in differing.items() if name.startswith(RESERVED)})


def in_child(run: Run) -> WholeRun:
    """`compare_whole_run` in a fork of this process, which must not have touched the device."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(receive)
            result = compare_whole_run(run)
            with os.fdopen(send, "w") as stream:
                json.dump([result.stream, result.statistics, result.reserved], stream)
            status = 0
        except BaseException as error:                  # the parent reports it
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    os.close(send)
    with os.fdopen(receive) as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    if status:
        return WholeRun("the child process failed, see stderr", {}, {})
    stream_difference, statistics, reserved = json.loads(answer)
    return WholeRun(stream_difference, tuples(statistics), tuples(reserved))


def tuples(pairs: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (pair[0], pair[1]) for name, pair in pairs.items()}
