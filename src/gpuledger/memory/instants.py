"""The account of a steady step at each of its boundaries and at its peak, as a meter would take it.

A meter outside of PyTorch can tell who owns a storage, not what it is for. So the categories here
are owners: parameters, gradients (what is in `.grad`), optimizer (states and master copies),
buffers (what lives between steps and is none of these: tables, the batch, cuBLAS workspaces),
activations (everything else of a forward or backward pass, saved or temporary, kernel scratch and
gradients on their way). What the update allocates for itself counts as optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.config.run import Run
from gpuledger.program.device import Device

from .allocator import AllocatorSettings, CachingAllocator, replay
from .allocator.allocator import DEFAULT_SETTINGS
from .allocator.sizes import block_bytes
from .ledger import CATEGORIES, Event
from .run import rank_programs, whole_run
from .step import RankRunner

STEPS = 3  # the third repeats the second, and the cache has settled
# A timeline's marks, as the boundary that ends the phase.
PHASES = {
    "forward": "forward", "backward": "backward", "weight gradients": "backward",
    "optimizer step": "optimizer", "zero grad": "zero grad"}


@dataclass(frozen=True)
class Instant:
    """Requested bytes by owner: at the boundary that ends `phase`, or at the peak inside it."""

    phase: str
    category_bytes: dict[str, int]

    @property
    def requested_bytes(self) -> int:
        return sum(self.category_bytes.values())


@dataclass(frozen=True)
class Bridge:
    """From what is requested to what the device has given away, in bytes; None is not known.

    requested, rounding and tails add up to the peak of allocated; with cached, to the peak of
    reserved: cached are free blocks and the splinters of split ones. outside is context, NCCL and
    other processes.
    """

    requested_bytes: int
    rounding_bytes: int
    tails_bytes: int
    cached_bytes: int
    outside_bytes: int | None

    @property
    def allocated_bytes(self) -> int:
        return self.requested_bytes + self.rounding_bytes + self.tails_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.allocated_bytes + self.cached_bytes

    @property
    def device_used_bytes(self) -> int:
        """As far as it is known."""
        return self.reserved_bytes + (self.outside_bytes or 0)


@dataclass(frozen=True)
class StepAccount:
    """One step: boundaries in order, the peak, the way from requested to device."""

    boundaries: tuple[Instant, ...]
    peak: Instant
    bridge: Bridge


def rounding_of(nbytes: int) -> int:
    """What the allocator adds to a request: up to the next 512 bytes. [A1]"""
    return block_bytes(nbytes) - nbytes


def account_of_run(
    run: Run, device: Device, settings: AllocatorSettings = DEFAULT_SETTINGS
) -> StepAccount:
    """Walks STEPS whole steps of all layers from an empty allocator; accounts for the last. [V1]"""
    runner = whole_run(run, rank_programs(run, device), STEPS)
    walk = LastStep(runner, STEPS)
    boundaries = tuple(walk.at(phase, end) for phase, _, end in walk.phases)
    peak, rounding = walk.peak()
    return StepAccount(boundaries, peak, bridge(runner, walk.start, (peak, rounding), settings))


class LastStep:
    """The events of the last of so many steps of a run, and who owns what in it."""

    def __init__(self, runner: RankRunner, steps: int):
        self.memory = runner.memory
        of_all = runner.timeline.marks
        marks = of_all[-(len(of_all) // steps):]
        ends = [*(position for position, _ in marks[1:]), len(self.memory.events)]
        self.phases = [(PHASES[name], begin, end)
                       for (begin, name), end in zip(marks, ends, strict=True)]
        self.start = self.phases[0][1]
        self.persistent = self.alive(self.start)
        before_update = next(begin for phase, begin, _ in self.phases if phase == "optimizer")
        self.gradients = {number for number in self.alive(before_update)
                          if self.memory.categories[number] == "gradients"}

    def alive(self, position: int) -> set[int]:
        """Allocations alive after so many events."""
        numbers: set[int] = set()
        for sign, number, _ in self.memory.events[:position]:
            (numbers.add if sign > 0 else numbers.remove)(number)
        return numbers

    def owner(self, number: int, phase: str) -> str:
        """Category of an allocation, seen in this phase."""
        if number in self.persistent:
            return self.memory.categories[number]
        if number in self.gradients:
            return "gradients"
        return "optimizer" if phase == "optimizer" else "activations"

    def at(self, phase: str, position: int) -> Instant:
        """The owners after so many events."""
        owned = dict.fromkeys(CATEGORIES, 0)
        for number in self.alive(position):
            owned[self.owner(number, phase)] += int(self.memory.sizes[number])
        return Instant(phase, owned)

    def peak(self) -> tuple[Instant, int]:
        """The first highest level of requested bytes, and what rounding adds there."""
        events, sizes = self.memory.events, self.memory.sizes
        live = highest = sum(int(sizes[number]) for number in self.persistent)
        at_highest, in_phase = self.start, self.phases[0][0]
        for phase, begin, end in self.phases:
            for position in range(begin, end):
                sign, _, nbytes = events[position]
                live += sign * int(nbytes)
                if live > highest:
                    highest, at_highest, in_phase = live, position + 1, phase
        rounding = sum(rounding_of(int(sizes[number])) for number in self.alive(at_highest))
        return self.at(in_phase, at_highest), rounding


def bridge(runner: RankRunner, start: int, peak: tuple[Instant, int],
           settings: AllocatorSettings) -> Bridge:
    """Replays the whole run; peaks of the step that begins after `start` events.

    The memory is without limit: what a run that does not fit would need.
    """
    allocator = CachingAllocator(settings)
    replay(with_new_peaks(runner.memory.events, start, allocator), allocator=allocator)
    stats = allocator.memory_stats()
    instant, rounding = peak
    allocated = stats["allocated_bytes.all.peak"]
    return Bridge(
        requested_bytes=instant.requested_bytes, rounding_bytes=rounding,
        tails_bytes=allocated - instant.requested_bytes - rounding,
        cached_bytes=stats["reserved_bytes.all.peak"] - allocated, outside_bytes=None)


def with_new_peaks(
    events: list[Event], start: int, allocator: CachingAllocator
) -> Iterator[tuple[int, int, int]]:
    """The events; before number `start` the allocator forgets its peaks."""
    for position, (sign, number, nbytes) in enumerate(events):
        if position == start:
            allocator.reset_peak_memory_stats()
        yield sign, number, int(nbytes)
