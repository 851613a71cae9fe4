"""The peaks of many runs in one walk: runs that differ in sizes alone, as NumPy integer arrays.

Micro-batch size, sequence length and the number of data-parallel ranks only scale tensors, so the
runs share one program whose sizes are arrays. Where sizes decide a code path (a window that is no
shorter than the sequence, one sequence or several), the arrays are divided and each part is walked
by itself. Every number equals that of `StepPeak` for the single run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpuledger.config.run import Run
from gpuledger.program.device import Device
from gpuledger.program.many_sizes import ManySizes, cells
from gpuledger.program.sizes import MixedSizes, Size

from .allocator.sizes import MIN_BLOCK_BYTES
from .group_timeline import GroupTimeline
from .ledger import CATEGORIES, Memory
from .peak import Live, StepPeak, live_of_update
from .peak_bytes import PeakBytes, peak_bytes, rounding_bytes

SIZES = (
    ("training", "seq_len"),
    ("training", "micro_batch_size"),
    ("parallel", "dp"),
    ("training", "global_batch_size"),
    ("cluster", "gpus"),
)
CELLS_AT_ONCE = 1024  # columns of the matrix of levels: bounds its memory

Array = Any  # a NumPy array of 64-bit integers


def find_peaks(runs: Sequence[Run], device: Device) -> list[PeakBytes]:
    """The peak of each run, in order; the runs may differ in SIZES only.

    Raises what StepPeak raises, for the first run that it refuses.
    """
    found: list[PeakBytes | None] = [None] * len(runs)
    waiting = [np.arange(len(runs))]
    while waiting:
        chosen = waiting.pop()
        try:
            peaks = _one_walk([runs[int(i)] for i in chosen], device)
        except MixedSizes as mixed:
            first = np.broadcast_to(np.asarray(mixed.condition, dtype=bool), chosen.shape)
            waiting += [chosen[~first], chosen[first]]
            continue
        for i, peak in zip(chosen, peaks, strict=True):
            found[i] = peak
    return [peak for peak in found if peak is not None]


def _one_walk(runs: Sequence[Run], device: Device) -> list[PeakBytes]:
    if len(runs) == 1:
        return [peak_bytes(StepPeak(runs[0], device).find())]
    return list(ManyPeaks(merged(runs), device, len(runs)).peaks())


def merged(runs: Sequence[Run]) -> Run:
    """One run whose SIZES are arrays where the runs differ. It is never validated again."""
    changes: dict[str, dict[str, Size]] = {"training": {}, "parallel": {}, "cluster": {}}
    for part, name in SIZES:
        values = [getattr(getattr(run, part), name) for run in runs]
        if len(set(values)) > 1:
            changes[part][name] = ManySizes(values)
    first = runs[0]
    return first.model_copy(
        update={
            part: getattr(first, part).model_copy(update=names) for part, names in changes.items()
        }
    )


class ManyPeaks(StepPeak):
    """StepPeak for a run with arrays. Where the highest level lies may differ from run to run."""

    def __init__(self, run: Run, device: Device, num_runs: int):
        super().__init__(run, device)
        self.num_runs = num_runs

    def peaks(self) -> Iterator[PeakBytes]:
        """As `find`, for every run. Raises MixedSizes where the arrays take different paths."""
        timeline = self._walk()
        runner, update_level, position = self.update_of(self.weights)
        update = live_of_update(runner.memory, position)
        for start in range(0, self.num_runs, CELLS_AT_ONCE):
            columns = slice(start, min(start + CELLS_AT_ONCE, self.num_runs))
            account = _Accounts(self, timeline, columns)
            level, positions = account.highest()
            in_update = account.end + account.cells(update_level) > level
            for i in range(columns.stop - columns.start):
                yield (
                    account.peak_in_update(i, update)
                    if in_update[i]
                    else account.peak(i, int(positions[i]))
                )

    def instant(self, timeline: GroupTimeline, position: int) -> str:
        """The name of a position in the walk."""
        return self._instant(timeline, position)

    def stands_for(self, memory: Memory, number: int) -> int:
        """How many allocations of the model this one is the account of."""
        return self._stands_for(memory, number)


class _Accounts:
    """Levels and categories of some of the runs of one walk: a matrix (allocations, runs)."""

    def __init__(self, finder: ManyPeaks, timeline: GroupTimeline, columns: slice):
        self.finder, self.timeline, self.memory = finder, timeline, timeline.memory
        self.columns = columns
        self.weights = np.array(
            [finder.stands_for(self.memory, number) for number in range(len(self.memory.sizes))]
        )
        self.sizes = np.stack([self.cells(size) for size in self.memory.sizes])
        self.weighted = self.sizes * self.weights[:, None]
        self.end = np.zeros_like(self.sizes[0])
        self.states = {name: self._states(name) for name in CATEGORIES}
        self.state_rounding = self.cells(sum(state.rounding_bytes for state in finder.states))
        self.at: dict[int, tuple[dict[str, Array], Array]] = {}

    def cells(self, size: Size) -> Array:
        """A size as one entry per run."""
        return cells(size, self.columns)

    def _states(self, category: str) -> Array:
        return self.cells(sum(s.nbytes for s in self.finder.states if s.category == category))

    def highest(self) -> tuple[Array, Array]:
        """(level, number of events up to it) over the allocations outside the middle layers."""
        low, high = self.finder.walk.middle
        events, layers = self.memory.events, self.memory.layers
        numbers = np.array([number for _, number, _ in events])
        signs = np.array([sign for sign, _, _ in events])
        levels = np.cumsum(signs[:, None] * self.weighted[numbers], axis=0)
        self.end = levels[-1]
        outside = np.array([layer is None or not low <= layer < high for layer in layers])
        candidates = np.flatnonzero((signs > 0) & outside[numbers])
        row = np.argmax(levels[candidates], axis=0)
        positions = candidates[row]
        return levels[positions, np.arange(len(positions))], positions + 1

    def peak(self, i: int, position: int) -> PeakBytes:
        """The account of run i after so many events."""
        categories, rounding = self._account(i, position)
        return PeakBytes(
            sum(categories.values()),
            rounding,
            self.finder.instant(self.timeline, position),
            categories,
        )

    def peak_in_update(self, i: int, update: Sequence[Live]) -> PeakBytes:
        """The account of run i at the end of the walk, and what the update holds beside it."""
        categories, rounding = self._account(i, len(self.memory.events))
        for item in update:
            categories[item.category] += self._of_run(i, item.nbytes)
            rounding += self._of_run(i, rounding_bytes(item))
        return PeakBytes(sum(categories.values()), rounding, "optimizer step", categories)

    def _account(self, i: int, position: int) -> tuple[dict[str, int], int]:
        """Bytes of run i by category after so many events, and what rounding adds."""
        if position not in self.at:
            self.at[position] = self._live(position)
        live, rounding = self.at[position]
        return (
            {name: int(self.states[name][i] + live[name][i]) for name in CATEGORIES},
            int(self.state_rounding[i] + rounding[i]),
        )

    def _of_run(self, i: int, size: Size) -> int:
        return int(self.cells(size)[i])

    def _live(self, position: int) -> tuple[dict[str, Array], Array]:
        """Bytes by category, and what rounding adds, of what is live after so many events."""
        numbers = np.array(self.memory.live(position), dtype=np.int64)
        rounding = (-self.sizes[numbers] % MIN_BLOCK_BYTES * self.weights[numbers, None]).sum(axis=0)
        of = np.array([self.memory.categories[number] for number in numbers])
        return {
            name: self.weighted[numbers[of == name]].sum(axis=0) for name in CATEGORIES
        }, rounding
