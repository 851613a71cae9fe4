"""`gpuledger validate`: real steps on a GPU beside the estimate; one run, or a matrix of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from ..config.cautions import cautions
from ..config.cluster import Gpu
from ..config.run import Run
from ..errors import GpuledgerError, InputError
from ..report.indented import indented
from ..torch_runs.child import Measurer
from ..torch_runs.matrix import Progress, matrix_file, read_matrix, run_matrix
from ..torch_runs.validate import LIMIT_SECONDS, Bench, emulated_bench, real_bench, validate

BAR_WIDTH = 24


def bench_of(emulated_gpu: Gpu | None) -> Bench:
    """This machine's GPU, or in a rehearsal the emulated one. Raises InputError without one."""
    return real_bench() if emulated_gpu is None else emulated_bench(emulated_gpu)


def gpu_assignment(bench: Bench) -> str:
    """The device as `--set` takes it; it need not be a preset."""
    return f"cluster.gpu={bench.gpu.model_dump_json(exclude_none=True)}"


def run_validate(run: Run, bench: Bench, assumptions: tuple[str, ...] = (), *,
                 as_json: bool = False) -> int:
    """Measures one run, prints the comparison, and returns 0.

    Raises:
        InputError: there is no GPU, or the run has something that PyTorch lacks.
        GpuledgerError: the measuring process died.
    """
    with Measurer(bench.environment, LIMIT_SECONDS) as measurer:
        result = validate(run, bench, measurer)
    if "error" in result:
        kind = InputError if result["outcome"] == "refused" else GpuledgerError
        raise kind(f"{run.name}: {result['error']}", result["hint"])
    for line in assumptions:
        typer.echo(f"assumed: {line}", err=True)
    for line in cautions(run):
        typer.echo(f"warning: {line}", err=True)
    typer.echo(indented(result) if as_json else text(result))
    return 0


def run_validate_matrix(matrix: str, folder: Path, *, as_json: bool = False,
                        emulated_gpu: Gpu | None = None) -> int:
    """Measures all runs of a matrix that `folder` has no result of, prints a summary, returns 0.

    Raises InputError as run_validate, and for a matrix that is none.
    """
    bench = bench_of(emulated_gpu)
    runs = read_matrix(matrix_file(matrix), bench.gpu)
    results = run_matrix(runs, bench, folder, show_progress)
    if as_json:
        typer.echo(json.dumps(summary(results), indent=2))
    else:
        typer.echo(summary_text(results))
    return 0


def show_progress(progress: Progress) -> None:
    """A bar on a terminal, a line a run elsewhere; on stderr."""
    what = "kept" if progress.from_file else verdict(progress.result)
    line = f"{progress.number}/{progress.total} {progress.name}: {what}"
    if sys.stderr.isatty():
        done = "#" * (BAR_WIDTH * progress.number // progress.total)
        end = "\n" if progress.number == progress.total else ""
        typer.echo(f"\r\033[K[{done:<{BAR_WIDTH}}] {line}{end}", err=True, nl=False)
    else:
        typer.echo(line, err=True)


def verdict(result: Any) -> str:
    """A run's result in a few words."""
    if result["outcome"] != "ok":
        return str(result["outcome"])
    memory = result["memory"]
    if memory["exact"]:
        return f"every row agrees, {result['seconds']} s"
    return f"unexplained {memory['unexplained_bytes']:+,} B, {result['seconds']} s"


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Outcomes, and the errors of the peaks: of runs that are modelled, and of the others apart.

    A run is not modelled whole where it has a framework whose buffers the estimate leaves out.
    """
    peaks = ("requested", "allocated", "reserved")
    compared = [result for result in results if "memory" in result]
    modelled = [result for result in compared if not result["not_modelled"]]
    others = [result for result in compared if result["not_modelled"]]
    return {
        "runs": len(results),
        "outcomes": dict(Counter(result["outcome"] for result in results)),
        "modelled": len(modelled),
        "exact": sum(result["memory"]["exact"] for result in modelled),
        "peaks": {peak: errors_of(peak, modelled) for peak in peaks},
        "not_modelled": {peak: errors_of(peak, others) for peak in peaks},
    }


def errors_of(peak: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """n, mean absolute error, bias and worst of measured minus estimated, in bytes and percent."""
    rows = [row for result in results for row in result["memory"]["rows"]
            if row["instant"] == "peaks" and row["item"] == peak]
    differences = [row["difference_bytes"] for row in rows]
    percents = [100 * row["difference_bytes"] / row["measured_bytes"] for row in rows]
    n = len(rows)
    return {
        "n": n,
        "mean_absolute_bytes": sum(map(abs, differences)) // n if n else None,
        "bias_bytes": sum(differences) // n if n else None,
        "largest_bytes": max(differences, key=abs) if n else None,
        "largest_percent": max(percents, key=abs) if n else None,
    }


def summary_text(results: list[dict[str, Any]]) -> str:
    """The summary as a few lines."""
    found = summary(results)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in found["outcomes"].items())
    lines = [f"{found['runs']} runs: {outcomes}",
             f"every row agrees to the byte in {found['exact']} of {found['modelled']} runs that "
             "are modelled whole", *peak_lines(found["peaks"])]
    if found["not_modelled"]["requested"]["n"]:
        lines += ["with a framework whose buffers the estimate leaves out:",
                  *peak_lines(found["not_modelled"])]
    return "\n".join(lines)


def peak_lines(peaks: dict[str, Any]) -> list[str]:
    """One line a counter, if anything was compared."""
    return [
        f"peak {peak}: n {errors['n']}, mean absolute {errors['mean_absolute_bytes']:,} B, "
        f"bias {errors['bias_bytes']:+,} B, largest {errors['largest_bytes']:+,} B "
        f"({errors['largest_percent']:+.3f} %)"
        for peak, errors in peaks.items() if errors["n"]]


def text(result: dict[str, Any]) -> str:
    """The comparison of one run, with its time and FLOPs."""
    from ..report.reconciliation_table import rows_table

    device = result["device"]
    heading = (f"{result['name']} on {device['name']}, driver {device['driver']}, PyTorch "
               f"{result['software']['torch']}: {verdict(result)}")
    parts = [heading]
    if "memory" in result:
        parts.append(rows_table(result["memory"]))
    if result["outcome"] == "out of memory":
        parts.append(result["out_of_memory"]["message"])
    if result.get("flops"):
        flops = result["flops"]
        parts.append(f"FLOPs by FlopCounterMode {flops['total']:,}, estimated "
                     f"{flops['estimated_total']:,}")
    if result.get("time"):
        parts.append(time_text(result))
    return "\n\n".join(parts)


def time_text(result: dict[str, Any]) -> str:
    """Step time by CUDA events, tokens per second, MFU and HFU where the peak is known."""
    time, use = result["time"], result.get("utilization")
    line = (f"step {time['median_seconds'] * 1000:.2f} ms (median of {len(time['seconds'])}), "
            f"{time['tokens_per_second']:,.0f} tokens/s")
    if use is None:
        return line
    first, shares = next(iter(use["by_convention"].items()))
    shown = f"MFU {shares['mfu']:.1%}, HFU {shares['hfu']:.1%}"
    return f"{line}, {shown} ({first}, {use['dtype']} peak)"
