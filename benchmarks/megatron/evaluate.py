"""Scores the account of a Megatron rank on Megatron-LM's own recorded bytes.

python benchmarks/megatron/evaluate.py [--check]

Each row is read by the product's reader of launch arguments, built by its engine and replayed through
its allocator model: bytes after the second step, and the peak of the second. Writes accuracy.json beside
this file; with --check it fails where that file would change. Nothing is fitted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE)]

from golden_rows import Row, recorded_rows  # noqa: E402
from result_file import written_or_checked  # noqa: E402

from gpuledger.errors import GpuledgerError  # noqa: E402
from gpuledger.estimate import device_of  # noqa: E402
from gpuledger.memory.allocator import CachingAllocator  # noqa: E402
from gpuledger.memory.frameworks.megatron.policy import unmodelled_megatron  # noqa: E402
from gpuledger.memory.frameworks.megatron.runner import MegatronRunner  # noqa: E402
from gpuledger.memory.pipeline.runner import stage_order, stage_programs  # noqa: E402

STEPS = 2


@dataclass(frozen=True)
class Scored:
    """Recorded and predicted bytes of the last rank."""

    test_case: str
    environment: str
    layout: str
    classes: tuple[str, ...]
    steady_bytes: int
    predicted_steady_bytes: int
    predicted_requested_bytes: int
    peak_bytes: int
    predicted_peak_bytes: int
    first_step_peak_bytes: int
    predicted_first_step_peak_bytes: int


@dataclass(frozen=True)
class Left:
    """A row that is not scored, and why."""

    test_case: str
    environment: str
    reason: str


def scored(row: Row) -> Scored | Left:
    """One row through reader, engine and allocator."""
    if row.unknown_gpus:
        return Left(row.test_case, row.environment, "the number of GPUs is not recorded")
    try:
        run = row.run()
        problems = list(unmodelled_megatron(run))
        if problems:
            return Left(row.test_case, row.environment, problems[0].message)
        stage = run.parallel.pp - 1
        programs = stage_programs(run, device_of(run), stage)
    except GpuledgerError as error:
        return Left(row.test_case, row.environment, error.problems[0].message)
    ranks = run.parallel.dp * run.parallel.cp
    runner = MegatronRunner(run, programs, stage_order(run, stage), stage, ranks - 1)
    allocator = CachingAllocator(row.allocator)
    live: dict[int, Any] = {}
    peaks, begin = [], 0
    for _ in range(STEPS):
        runner.step()
        begin = played(allocator, runner, live, begin)
        peaks.append(allocator.memory_stats()["allocated_bytes.all.peak"])
    stats = allocator.memory_stats()
    axes = run.parallel
    return Scored(
        row.test_case, row.environment,
        f"tp{axes.tp} pp{axes.pp} vpp{axes.vpp} cp{axes.cp} dp{axes.dp}", tuple(classes_of(row, run)),
        row.steady_bytes, stats["allocated_bytes.all.current"], stats["requested_bytes.all.current"],
        row.peak_bytes, peaks[-1], row.first_step_peak_bytes, peaks[0])


def played(allocator: CachingAllocator, runner: MegatronRunner, live: dict[int, Any], begin: int) -> int:
    """Events from number `begin` on through the allocator; their number now."""
    events = runner.memory.events
    for sign, number, nbytes in events[begin:]:
        if sign > 0:
            live[number] = allocator.allocate(int(nbytes), 0)
        else:
            allocator.free(live.pop(number))
    return len(events)


def classes_of(row: Row, run: Any) -> Iterable[str]:
    """The groups of the summary that a row belongs to."""
    axes = run.parallel
    yield "all"
    if row.resumed:
        yield "resumed"
        return
    yield "not resumed"
    if row.fused_loss:
        yield "fused cross-entropy"
        return
    yield "not resumed, no fused cross-entropy"
    expandable = "expandable_segments:True" in row.variables.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if expandable:
        yield "expandable segments"
    if axes.zero_stage:
        yield "distributed optimizer"
    elif not expandable:
        yield "plain DDP, default allocator"
    yield "local layers" if axes.megatron.transformer_impl == "local" else "Transformer Engine"
    if axes.megatron.params_dtype == "float16":
        yield "fp16"
    yield "pp = 1" if axes.pp == 1 else "vpp > 1" if axes.vpp > 1 else "pp > 1, no vpp"
    if axes.cp > 1:
        yield "cp > 1"
    if "7b" in row.test_case:
        yield "7B"


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(rows: list[Scored], recorded: Callable[[Scored], int],
            predicted: Callable[[Scored], int]) -> dict[str, Any]:
    """Errors of predicted over recorded bytes in percent; bias is their mean."""
    pairs = [(recorded(r), predicted(r)) for r in rows if recorded(r)]
    errors = [100 * (p / m - 1) for m, p in pairs]
    if not errors:
        return {"n": 0}
    sizes = [abs(error) for error in errors]
    return {"n": len(errors), "exact": sum(m == p for m, p in pairs),
            "within_0.1_percent": sum(size <= 0.1 for size in sizes),
            "median": round(quantile(sizes, 0.5), 4),
            "mean_absolute": round(sum(sizes) / len(sizes), 4), "p95": round(quantile(sizes, 0.95), 3),
            "max": round(max(sizes), 3), "bias": round(sum(errors) / len(errors), 4)}


def report(results: list[Scored | Left]) -> dict[str, Any]:
    rows = [r for r in results if isinstance(r, Scored)]
    names = dict.fromkeys(name for row in rows for name in row.classes)
    by_class = {}
    for name in names:
        members = [row for row in rows if name in row.classes]
        by_class[name] = {
            "steady": summary(members, lambda r: r.steady_bytes, lambda r: r.predicted_steady_bytes),
            "requested_only": summary(members, lambda r: r.steady_bytes,
                                      lambda r: r.predicted_requested_bytes),
            "peak": summary(members, lambda r: r.peak_bytes, lambda r: r.predicted_peak_bytes),
            "first_step_peak": summary([r for r in members if "resumed" not in r.classes],
                                       lambda r: r.first_step_peak_bytes,
                                       lambda r: r.predicted_first_step_peak_bytes)}
    left = [asdict(r) for r in results if isinstance(r, Left)]
    listed = [{k: v for k, v in asdict(r).items() if k != "classes"} for r in rows]
    return {"by_class": by_class, "not_scored": left, "rows": listed}


def main() -> int:
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(scored, recorded_rows(), chunksize=4))
    made = report(results)
    for name, figures in made["by_class"].items():
        for counter in ("steady", "peak"):
            print(f"{name:38} {counter:7} {figures[counter]}")
    print(f"not scored: {len(made['not_scored'])}")
    return written_or_checked(HERE / "accuracy.json", made)


if __name__ == "__main__":
    sys.exit(main())
