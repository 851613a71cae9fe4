"""A grid of runs: which of them fit, how much memory they need, and why the others do not fit.

Cells whose runs differ in sizes alone share one walk of the step (memory/many_peaks.py); the rest
is spread over processes. Results come cell by cell, in no particular order, so that an interrupted
sweep keeps what it has.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from multiprocessing import Pool
from typing import Any, Literal

from .axes import Axis, grid
from .compute.conventions import (
    DEFAULT_CONVENTION,
    hardware_flops_per_sequence,
    model_flops_per_sequence,
)
from .config import RunOptions
from .config.model import Model
from .config.resolve import resolve_each
from .config.run import Run
from .config.sources import Source
from .config.training import Recompute
from .errors import GpuledgerError
from .estimate import Memory, device_of, estimate, memory_of, refuse_unmodelled
from .memory.context import at_heaviest_rank
from .memory.frameworks import policy_of
from .memory.host import host_memory, offloads
from .memory.many_peaks import SIZES, find_peaks
from .memory.peak import DIFFERENT_MICRO_BATCHES
from .memory.peak_bytes import PeakBytes, peak_bytes
from .memory.pipeline.finders import finders
from .units import gib

Status = Literal["fits", "does not fit", "refused"]
GROUPS_FOR_PROCESSES = 12  # below this the start of processes costs more than it saves
RUNS_AT_ONCE = 4096  # of one group in one task: bounds how long a process is silent


@dataclass(frozen=True)
class Cell:
    """One combination of settings; `reason` says why it does not fit, or why it is refused.

    memory and FLOPs are None where the run is refused.
    """

    settings: dict[str, Any]
    status: Status
    reason: str
    memory: Memory | None = None
    model_flops_per_step: int | None = None
    hardware_flops_per_step: int | None = None


@dataclass(frozen=True)
class Sweep:
    """The cells of a grid, the last axis fastest; None where the sweep was interrupted."""

    axes: tuple[Axis, ...]
    cells: tuple[Cell | None, ...]
    replayed: bool

    @property
    def finished(self) -> int:
        return sum(cell is not None for cell in self.cells)


def sweep(
    source: Source,
    options: RunOptions,
    axes: Sequence[Axis],
    *,
    replay: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sweep:
    """Estimate every cell of the grid; Ctrl-C ends it early, and the cells so far are returned.

    replay: replay each run through the allocator, as `gpuledger estimate` does, for reserved bytes;
    otherwise memory is that of `estimate(run)`: allocated bytes without cached blocks.
    Raises InputError where the source or an axis is wrong for all cells.
    """
    settings = grid(axes)
    cells: list[Cell | None] = [None] * len(settings)
    done = 0
    try:
        for index, cell in evaluated(source, options, settings, replay):
            cells[index] = cell
            done += 1
            progress(done, len(cells))
    except KeyboardInterrupt:
        pass
    return Sweep(tuple(axes), tuple(cells), replay)


def evaluated(
    source: Source, options: RunOptions, settings: Sequence[dict[str, Any]], replay: bool
) -> Iterator[tuple[int, Cell]]:
    """(index, cell) for each combination of settings, as they become known."""
    groups: dict[object, list[tuple[int, Run]]] = {}
    for index, resolved in enumerate(resolve_each(source, options, settings)):
        try:
            if isinstance(resolved, GpuledgerError):
                raise resolved
            run, _ = resolved
            refuse_unmodelled(run)
            device_of(run)
            groups.setdefault(index if replay else code_path(run), []).append((index, run))
        except GpuledgerError as error:
            yield index, refused(settings[index], error)
    tasks = [
        members[start : start + RUNS_AT_ONCE]
        for members in groups.values()
        for start in range(0, len(members), RUNS_AT_ONCE)
    ]
    for members, results in computed(tasks, replay):
        for (index, run), result in zip(members, results, strict=True):
            yield index, cell_of(settings[index], run, result)


def code_path(run: Run) -> object:
    """Equal for runs that differ in sizes alone and can be walked together."""
    parallel, gpu = run.parallel, run.cluster.gpu
    if parallel.world_size != parallel.dp or not policy_of(parallel).walks_layers_once:
        return run.model_dump_json()
    blank = {
        part: dict.fromkeys((name for owner, name in SIZES if owner == part), 0)
        for part in ("training", "parallel")
    }
    alone = parallel.framework in (None, "single")  # a framework may divide by dp as it likes
    return (
        run.model,
        run.training.model_copy(update=blank["training"]),
        parallel.model_copy(update=blank["parallel"]),
        gpu.capability,
        gpu.num_sms,
        min(run.num_microbatches, DIFFERENT_MICRO_BATCHES),
        parallel.dp > 1 if alone else parallel.dp,
    )


Task = list[tuple[int, Run]]
Result = Memory | GpuledgerError


def computed(tasks: Sequence[Task], replay: bool) -> Iterator[tuple[Task, list[Result]]]:
    """Each task with its results, here or in processes."""
    function = replayed_memories if replay else memories
    processes = min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        len(tasks),
    )
    if len(tasks) < GROUPS_FOR_PROCESSES or processes < 2:
        for task in tasks:
            yield task, function([run for _, run in task])
        return
    work = partial(computed_task, function)
    with Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        numbered = list(enumerate([run for _, run in task] for task in tasks))
        for number, results in pool.imap_unordered(work, numbered):
            yield tasks[number], results


def computed_task(
    function: Callable[[Sequence[Run]], list[Result]], task: tuple[int, Sequence[Run]]
) -> tuple[int, list[Result]]:
    """The results beside the number of their task, because they come in any order."""
    number, runs = task
    return number, function(runs)


def memories(runs: Sequence[Run]) -> list[Result]:
    """The memory of runs of one code path; what is refused is refused run by run."""
    device = device_of(runs[0])
    peaks: list[PeakBytes | GpuledgerError]
    together = runs[0].parallel.cp == 1             # else which rank needs most depends on the sizes
    try:
        peaks = list(find_peaks(runs, device)) if together else [alone(run) for run in runs]
    except GpuledgerError:
        peaks = [alone(run) for run in runs]
    return [
        peak if isinstance(peak, GpuledgerError) else with_host(run, memory_of(run, peak))
        for run, peak in zip(runs, peaks, strict=True)
    ]


def with_host(run: Run, memory: Memory) -> Memory:
    """The same with what the run keeps in the host's memory."""
    if not offloads(run):
        return memory
    finder = next(iter(finders(run, device_of(run))))
    return replace(memory, host=host_memory(run, finder.policy, finder.counted))


def memories_of(runs: Sequence[Run]) -> list[Result]:
    """The memory of any runs, those of one code path together."""
    groups: dict[object, list[int]] = {}
    for index, run in enumerate(runs):
        groups.setdefault(code_path(run), []).append(index)
    found: dict[int, Result] = {}
    for members in groups.values():
        found |= zip(members, memories([runs[index] for index in members]), strict=True)
    return [found[index] for index in range(len(runs))]


def alone(run: Run) -> PeakBytes | GpuledgerError:
    """One run walked by itself."""
    try:
        device = device_of(run)
        run = at_heaviest_rank(run, device)
        return max((peak_bytes(finder.find()) for finder in finders(run, device)),
                   key=lambda peak: peak.requested_bytes)
    except GpuledgerError as error:
        return error


def replayed_memories(runs: Sequence[Run]) -> list[Result]:
    """The memory of each run with the allocator's cache, as `gpuledger estimate` prints it."""
    results: list[Result] = []
    for run in runs:
        try:
            results.append(estimate(run, replay=True).memory)
        except GpuledgerError as error:
            results.append(error)
    return results


def cell_of(settings: dict[str, Any], run: Run, result: Result) -> Cell:
    """The cell of a run whose memory is known, or was refused."""
    if isinstance(result, GpuledgerError):
        return refused(settings, result)
    model_flops, hardware_flops = flops_per_sequence(
        run.model, run.training.seq_len, run.training.recompute
    )
    batch = run.training.global_batch_size
    return Cell(
        settings,
        "fits" if result.fits else "does not fit",
        why_not(result),
        result,
        model_flops * batch,
        hardware_flops * batch,
    )


def refused(settings: dict[str, Any], error: GpuledgerError) -> Cell:
    return Cell(settings, "refused", "; ".join(problem.message for problem in error.problems))


def why_not(memory: Memory) -> str:
    """How far over, what is the largest part, and when; empty where it fits."""
    if memory.fits:
        return ""
    name, nbytes = max(memory.category_bytes.items(), key=lambda item: item[1])
    return (
        f"{gib(-memory.headroom_bytes)} over: {name} {gib(nbytes)}, peak at {memory.peak_instant}"
    )


@lru_cache(maxsize=4096)
def flops_per_sequence(model: Model, seq_len: int, recompute: Recompute) -> tuple[int, int]:
    """Model and hardware FLOPs by the default convention."""
    return (
        model_flops_per_sequence(model, seq_len, DEFAULT_CONVENTION),
        hardware_flops_per_sequence(model, seq_len, recompute, DEFAULT_CONVENTION),
    )
