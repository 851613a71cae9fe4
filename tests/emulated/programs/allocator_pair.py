"""The compiled allocator and our model, driven by the same random operations, in a child process.

The environment names the settings (PYTORCH_CUDA_ALLOC_CONF) and the device; one JSON line comes
back. Every statistic, every block of every segment and every out-of-memory error must agree.
"""
from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from gpuledger.memory.allocator import (
    AllocatorSettings,
    Block,
    CachingAllocator,
    OutOfMemory,
    parse_alloc_conf,
    settings_from_environment,
)

MIB = 2**20
EDGES = (512, MIB, MIB + 1, 2 * MIB, 4 * MIB, 10 * MIB - 512, 10 * MIB, 64 * MIB - 512, 64 * MIB)
STEP_LIKE = (4096, MIB, 3 * MIB, 4 * MIB, 16 * MIB, 48 * MIB, 100 * MIB)
MOST_LIVE = 400
ROOM = 2**29


class Mismatch(Exception):  # noqa: N818
    """The two allocators disagree."""


@dataclass
class Outcome:
    """What one child process saw."""

    seeds: int = 0
    operations: int = 0
    ooms: int = 0
    stream_uses: int = 0
    statistics_compared: int = 0
    mismatches: tuple[str, ...] = ()


class Pair:
    """Both allocators, and every live tensor beside our block for it."""

    def __init__(self, settings: AllocatorSettings, streams: int):
        total_bytes = torch.cuda.mem_get_info()[1]
        self.model = CachingAllocator(settings, total_bytes)
        side = [torch.cuda.Stream() for _ in range(streams - 1)]
        self.streams = {s.stream_id: s for s in (torch.cuda.default_stream(), *side)}
        self.live: list[tuple[torch.Tensor, Block]] = []

    def allocate(self, nbytes: int, stream: int) -> bool:
        """Whether both found room."""
        try:
            block, ours = self.model.allocate(nbytes, stream), ""
        except OutOfMemory as error:
            block, ours = None, error.problems[0].message
        torch.cuda.set_stream(self.streams[stream])
        try:
            tensor, theirs = torch.empty(nbytes, dtype=torch.uint8, device="cuda"), ""
        except torch.cuda.OutOfMemoryError as error:
            tensor, theirs = None, str(error)
        if not theirs.startswith(ours) or bool(theirs) != bool(ours):
            raise Mismatch(f"{nbytes} bytes: PyTorch says '{theirs[:400]}', the model '{ours}'")
        if tensor is None or block is None:
            return False
        self.live.append((tensor, block))
        return True

    def leave_only(self, room: int) -> None:
        """Fill the device (or what of it is allowed) but for less than twice `room` bytes."""
        heap = self.model.heap
        limit = heap.device.free_bytes if heap.allowed_bytes is None else heap.allowed_bytes
        for _ in range(limit // room - 1):
            self.allocate(room, 0)
        self.fillers, self.live = self.live, []

    def free(self, position: int) -> None:
        tensor, block = self.live.pop(position)
        del tensor
        self.model.free(block)

    def use_on(self, position: int, stream: int) -> None:
        tensor, block = self.live[position]
        tensor.record_stream(self.streams[stream])
        self.model.record_stream(block, stream)

    def use_all_streams(self) -> None:
        """PyTorch's table of streams lives as long as the process; ours grows to its size here."""
        for stream in self.streams:
            self.allocate(512, stream)
            for other in self.streams:
                self.use_on(-1, other)
        while self.live:
            self.free(-1)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()
        self.model.empty_cache()

    def reset_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self.model.reset_peak_memory_stats()

    def compare_statistics(self) -> int:
        """How many numbers were compared."""
        theirs, ours = dict(torch.cuda.memory_stats()), self.model.memory_stats()
        differing = {k: (theirs.get(k), ours.get(k)) for k in theirs.keys() | ours.keys()
                     if theirs.get(k) != ours.get(k)}
        if differing:
            raise Mismatch(f"(PyTorch, model): {dict(sorted(differing.items())[:6])}")
        return len(ours)

    def compare_segments(self) -> None:
        """The layout of every segment, whatever its address."""
        ids = {stream.cuda_stream: number for number, stream in self.streams.items()}
        theirs = sorted(
            (ids[s["stream"]], s["segment_type"] == "small", s["total_size"],
             [(b["size"], b["requested_size"] * (b["state"] != "inactive"), b["state"])
              for b in s["blocks"]])
            for s in torch.cuda.memory_snapshot())
        ours = sorted(
            (s.stream, s.small, s.size,
             [(b.size, b.requested_bytes * (b.state != "inactive"), b.state) for b in s.blocks])
            for s in self.model.segments())
        if theirs != ours:
            first = next((p for p in zip(theirs, ours, strict=False) if p[0] != p[1]), "a length")
            raise Mismatch(f"segments differ: {first}")


def sizes(seed: int, rng: random.Random) -> Iterator[int]:
    """Requested bytes: all magnitudes and the edges of the rules; every third seed few sizes."""
    while True:
        if seed % 3 == 0:
            yield rng.choice(STEP_LIKE)
        else:
            yield rng.choice((
                rng.randrange(1, 2000), rng.randrange(1, MIB), rng.randrange(MIB, 10 * MIB),
                rng.randrange(10 * MIB, 200 * MIB), rng.choice(EDGES)))


def run_seed(
    seed: int, operations: int, settings: AllocatorSettings, outcome: Outcome, *, tight: bool
) -> None:
    """Odd seeds use three streams, with some blocks used on other streams before they are freed."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    rng, streams = random.Random(seed), 3 if seed % 2 else 1
    pair, requests = Pair(settings, streams), sizes(seed, rng)
    numbers = list(pair.streams)
    pair.use_all_streams()
    if tight:
        pair.leave_only(ROOM)
    outcome.statistics_compared += pair.compare_statistics()
    for operation in range(operations):
        choice = rng.random()
        if choice < 0.004:
            pair.empty_cache()
        elif choice < 0.008:
            pair.reset_peaks()
        elif pair.live and (choice < 0.47 or len(pair.live) > MOST_LIVE):
            pair.free(rng.randrange(len(pair.live)))
        elif pair.live and streams > 1 and choice < 0.57:
            pair.use_on(rng.randrange(len(pair.live)), rng.choice(numbers))
            outcome.stream_uses += 1
        else:
            outcome.ooms += not pair.allocate(next(requests), rng.choice(numbers))
        outcome.operations += 1
        if operation % 10 == 0 or operation > operations - 10:
            outcome.statistics_compared += pair.compare_statistics()
        if operation % 250 == 0:
            pair.compare_segments()
    pair.compare_segments()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--tight-seeds", type=int, nargs="+", default=[], help="with 1 GiB left")
    parser.add_argument("--operations", type=int, default=1000)
    parser.add_argument("--model-settings", help="for the model alone, to see the comparison fail")
    arguments = parser.parse_args()
    settings = settings_from_environment(os.environ)
    if arguments.model_settings is not None:
        settings = parse_alloc_conf(arguments.model_settings)
    torch.cuda.init()
    outcome = Outcome()
    for seed in arguments.seeds + arguments.tight_seeds:
        outcome.seeds += 1
        tight = seed in arguments.tight_seeds
        try:
            run_seed(seed, arguments.operations, settings, outcome, tight=tight)
        except Mismatch as mismatch:
            outcome.mismatches += (f"seed {seed}, operation {outcome.operations}: {mismatch}",)
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
