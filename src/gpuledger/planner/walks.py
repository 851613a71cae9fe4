"""One micro-batch of a part of the model for many sizes at once: levels and what stays, as arrays.

The walk is that of `estimate` (memory/pipeline/stage_peak.py) with NumPy arrays as sizes. Like
layers are walked once, and one walk serves every depth whose middle differs in number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuledger.config.run import Run
from gpuledger.memory.allocator.sizes import MIN_BLOCK_BYTES
from gpuledger.memory.layers import Walk
from gpuledger.memory.ledger import Memory
from gpuledger.memory.pipeline.stage_peak import ChunkWalk
from gpuledger.program.device import Device
from gpuledger.program.many_sizes import distinct_cells
from gpuledger.program.model import Stage
from gpuledger.program.sizes import MixedSizes

Array = Any  # a NumPy array of 64-bit integers
COLUMNS_AT_ONCE = 512  # rows of sizes in one matrix of levels: bounds its memory
DEEP = 5  # blocks of the walk of a deep part: two at each end, and one for all in the middle
SHALLOW = {2: (0, 4), 3: (0, 1, 4), 4: (0, 1, 3, 4), 5: (0, 1, 2, 3, 4)}


@dataclass(frozen=True)
class Bytes:
    """Requested bytes, and what rounding each tensor up to 512 bytes adds to them."""

    requested: Array
    rounding: Array

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.requested + other.requested, self.rounding + other.rounding)

    def __mul__(self, count: int) -> Bytes:
        return Bytes(self.requested * count, self.rounding * count)

    def __getitem__(self, chosen: Any) -> Bytes:
        return Bytes(self.requested[chosen], self.rounding[chosen])

    def higher(self, other: Bytes) -> Bytes:
        """Entry by entry the one with more requested bytes; this one where they are equal."""
        return self.replaced(other.requested > self.requested, other)

    def replaced(self, where: Array, other: Bytes) -> Bytes:
        """The other's entries where that is asked for."""
        return Bytes(
            np.where(where, other.requested, self.requested),
            np.where(where, other.rounding, self.rounding),
        )

    @classmethod
    def empty(cls, *shape: int) -> Bytes:
        return cls(np.empty(shape, np.int64), np.empty(shape, np.int64))

    def put(self, chosen: Any, values: Bytes) -> None:
        """Write some of the entries."""
        self.requested[chosen] = values.requested
        self.rounding[chosen] = values.rounding


@dataclass(frozen=True)
class PassBytes:
    """One part after earlier micro-batches left gradients or none; each entry is (depths, rows).

    forward, backward: the highest level in the pass, without earlier gradients. held: what waits
    between the passes. gradients: what earlier micro-batches left.
    """

    forward: Bytes
    backward: Bytes
    held: Bytes
    gradients: Bytes


FIELDS = ("forward", "backward", "held", "gradients")


class CodePaths:
    """Rows whose sizes take one code path, as far as is known: learned where a walk finds sizes
    that do not."""

    def __init__(self, rows: int):
        self.path = np.zeros(rows, np.int64)
        self.known = 1

    def run(self, rows: Array, function: Callable[[Array], None]) -> None:
        """Calls function(numbers) on pieces of the rows, each of one code path."""
        waiting = [rows[self.path[rows] == path] for path in np.unique(self.path[rows])]
        while waiting:
            piece = waiting.pop()
            try:
                function(piece)
            except MixedSizes as mixed:
                first = np.broadcast_to(np.asarray(mixed.condition, dtype=bool), piece.shape)
                self.path[piece[first]] = self.known
                self.known += 1
                waiting += [piece[~first], piece[first]]


@dataclass(frozen=True)
class Depth:
    """A part of some number of blocks by a walk of fewer or more: how many blocks of the part each
    walked block stands for."""

    weights: tuple[int, ...]

    @classmethod
    def of(cls, num_layers: int, plan: Callable[[int], Walk], *, alike: bool) -> Depth:
        """alike: all blocks but the first and the last behave alike, so that the walk of a deep
        part also tells what a part of two to five blocks does, by leaving blocks out."""
        walk = plan(num_layers)
        if alike and 2 <= num_layers <= DEEP:
            kept = SHALLOW[num_layers]
            return cls(tuple(int(i in kept) for i in range(DEEP)))
        return cls(tuple(walk.stands_for(i) for i in range(walk.num_layers)))

    @property
    def candidates(self) -> tuple[bool, ...]:
        """Blocks in which the highest level may lie: those that stand for themselves alone. (Of blocks
        that stand for more, the level grows or falls from one to the next; the ends are walked.) The
        last entry is for what lies in no block."""
        return (*(weight == 1 for weight in self.weights), True)


class PartWalk:
    """Walks a part for some rows of sizes (in `run`, as columns) and reads off all depths, whose
    walks have the same number of blocks."""

    def __init__(self, run: Run, device: Device, stage: Stage, depths: Sequence[Depth]):
        walked = replace(stage, num_layers=len(depths[0].weights))
        self.chunk = ChunkWalk(run, device, walked)
        self.depths = depths
        self.alone = stage.embedding and stage.head

    def after(self, earlier: str, rows: int) -> PassBytes:
        """After earlier micro-batches left gradients (ALL) or none (NONE)."""
        timeline = self.chunk.timeline_after(earlier)
        memory = timeline.memory
        ends = [len(memory.events)]
        timeline.forward_pass()
        if not self.alone:  # with one stage the backward pass follows at once
            timeline.leave()
        ends.append(len(memory.events))
        timeline.backward_pass()
        timeline.leave()
        ends.append(len(memory.events))
        found = PassBytes(*(Bytes.empty(len(self.depths), rows) for _ in FIELDS))
        for start in range(0, rows, COLUMNS_AT_ONCE):
            columns = slice(start, min(start + COLUMNS_AT_ONCE, rows))
            self._read(memory, ends, columns, found)
        return found

    def _read(self, memory: Memory, ends: list[int], columns: slice, found: PassBytes) -> None:
        levels = _Levels(memory, self.depths, columns)
        start, forward_end, end = ends
        for d, depth in enumerate(self.depths):
            before = levels.at(start, depth)
            at = (d, columns)
            found.gradients.put(at, before)
            found.forward.put(at, levels.highest(start, forward_end, depth) + before * -1)
            found.backward.put(at, levels.highest(forward_end, end, depth) + before * -1)
            found.held.put(at, levels.at(forward_end, depth) + before * -1)


@dataclass(frozen=True)
class _Sums:
    """Live bytes of some allocations: rows[event] of `requested` and of `rounding` is what lives after
    an event, a row for no event of theirs and one for each."""

    rows: Array
    requested: Array
    rounding: Array


class _Levels:
    """Live bytes after each event: those of blocks that count alike at all depths together, those
    of every other block by itself."""

    def __init__(self, memory: Memory, depths: Sequence[Depth], columns: slice):
        self.numbers = np.array([number for _, number, _ in memory.events], dtype=np.int64)
        self.signs = np.array([sign for sign, _, _ in memory.events], dtype=np.int64)
        blocks = len(depths[0].weights)
        self.blocks = np.array([blocks if i is None else i for i in memory.layers])[self.numbers]
        each = distinct_cells(memory.sizes, columns)
        rounding = -each % MIN_BLOCK_BYTES
        varying = [i for i in range(blocks) if len({d.weights[i] for d in depths}) > 1
                   or depths[0].weights[i] != 1]
        groups: dict[tuple[int | None, bool], list[int]] = {(None, False): []}
        for number, layer in enumerate(memory.layers):
            key = (layer, number in memory.once) if layer in varying else (None, False)
            groups.setdefault(key, []).append(number)
        self.live = {key: self._sums(each, rounding, members) for key, members in groups.items()}

    def _sums(self, each: Array, rounding: Array, members: list[int]) -> _Sums:
        """Of these allocations."""
        chosen = np.zeros(len(each), bool)
        chosen[members] = True
        own = chosen[self.numbers]
        numbers, signs = self.numbers[own], self.signs[own][:, None]
        sums = []
        for nbytes in (each, rounding):
            moved = np.zeros((len(numbers) + 1, each.shape[1]), np.int64)
            np.cumsum(signs * nbytes[numbers], axis=0, out=moved[1:])
            sums.append(moved)
        return _Sums(np.cumsum(own), sums[0], sums[1])

    def _total(self, depth: Depth, take: Callable[[_Sums], Array]) -> Array:
        """Requested bytes or rounding at some events. [L1]"""
        total = take(self.live[None, False])
        for (layer, once), sums in self.live.items():
            weight = 1 if layer is None else depth.weights[layer]
            if layer is not None and weight:
                total = total + take(sums) * (1 if once else weight)
        return total

    def at(self, end: int, depth: Depth) -> Bytes:
        """After so many events."""
        if end == 0:
            nothing = np.zeros_like(self.live[None, False].requested[0])
            return Bytes(nothing, nothing)
        return Bytes(self._total(depth, lambda sums: sums.requested[sums.rows[end - 1]]),
                     self._total(depth, lambda sums: sums.rounding[sums.rows[end - 1]]))

    def highest(self, begin: int, end: int, depth: Depth) -> Bytes:
        """The highest level of the events begin ... end - 1, and the rounding there."""
        candidates = np.array(depth.candidates)
        found = (self.signs[begin:end] > 0) & candidates[self.blocks[begin:end]]
        events = begin + np.flatnonzero(found)
        if not len(events):
            return self.at(begin, depth)
        levels = self._total(depth, lambda sums: sums.requested[sums.rows[events]])
        row = np.argmax(levels, axis=0)
        columns = np.arange(levels.shape[1])
        event = events[row]
        return Bytes(levels[row, columns],
                     self._total(depth, lambda sums: sums.rounding[sums.rows[event], columns]))
