"""`gpuledger emulate RUN`: real PyTorch on an emulated GPU beside the estimate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ..config.cautions import cautions
from ..config.run import Run
from ..report.indented import indented
from ..torch_runs.child import Options, measure_emulated
from ..torch_runs.reconcile import Reconciliation, reconcile
from ..torch_runs.validate import not_modelled

ROOMY_BYTES = 2**46  # of a GPU that nothing runs out of
MOST_MICRO_BATCHES = 2


@dataclass(frozen=True)
class Emulation:
    """The report at the GPU's own capacity, one of a GPU with room for everything, the comparison.

    Where the run fits, both reports are the same.
    """

    report: dict[str, Any]
    roomy_report: dict[str, Any]
    reconciliation: Reconciliation
    seconds: float

    @property
    def fits(self) -> bool:
        return bool(self.report["outcome"] == "ok")


def emulate(run: Run, snapshot: Path | None = None) -> Emulation:
    """Measures the run on its own GPU, and again without a limit if it ran out of memory.

    Raises:
        InputError: PyTorch is missing or cannot be emulated, or the run has something it lacks.
        NotYetError: the run is divided in a way that one process cannot be one rank of.
        GpuledgerError: the measuring process died.
    """
    begin = time.monotonic()
    run, options = representative(run), Options(snapshot=snapshot)
    report = measure_emulated(run, options)
    roomy = report if report["outcome"] == "ok" else measure_emulated(with_room(run), options)
    return Emulation(report, roomy, reconcile(run, roomy), time.monotonic() - begin)


def representative(run: Run) -> Run:
    """The same run with two micro-batches at most: every later one repeats the second."""
    training, dp = run.training, run.parallel.dp
    passes = min(run.num_microbatches, MOST_MICRO_BATCHES)
    shorter = {"global_batch_size": training.micro_batch_size * dp * passes}
    return run.model_copy(update={"training": training.model_copy(update=shorter)})


def with_room(run: Run) -> Run:
    """The same run on a GPU of the same kind with memory for everything."""
    gpu = run.cluster.gpu.model_copy(
        update={"memory_bytes": ROOMY_BYTES, "torch_visible_bytes": ROOMY_BYTES})
    return run.model_copy(update={"cluster": run.cluster.model_copy(update={"gpu": gpu})})


def run_emulate(run: Run, assumptions: tuple[str, ...] = (), *, as_json: bool = False,
                snapshot: Path | None = None) -> int:
    """Prints the comparison and returns 0. Raises as `emulate`."""
    result = emulate(run, snapshot)
    for line in assumptions:
        typer.echo(f"assumed: {line}", err=True)
    for line in (*cautions(run), *not_modelled(run)):
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        typer.echo(indented(content(run, result, assumptions)))
    else:
        typer.echo(text(run, result))
    return 0


def content(run: Run, result: Emulation, assumptions: tuple[str, ...]) -> dict[str, Any]:
    """The JSON document."""
    from ..report.reconciliation_json import SCHEMA_VERSION, reconciliation_content

    report = result.report
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run.model_dump(mode="json"),
        "emulated": True,
        "memory": reconciliation_content(result.reconciliation),
        "outcome": report["outcome"],
        "out_of_memory": report.get("out_of_memory"),
        "timeline": result.roomy_report["timeline"],
        "not_modelled": not_modelled(run),
        "software": report["software"],
        "device": report["device"],
        "seconds": result.seconds,
        "assumptions": list(assumptions),
    }


def text(run: Run, result: Emulation) -> str:
    """Heading, comparison, verdict, and what is not real."""
    from ..report.reconciliation_json import reconciliation_content
    from ..report.reconciliation_table import rows_table

    device, software = result.report["device"], result.report["software"]
    heading = (f"{result.report['run']['name']} on an emulated {device['name']}, PyTorch "
               f"{software['torch']}, {result.seconds:.1f} s")
    parts = [heading, rows_table(reconciliation_content(result.reconciliation))]
    if run.num_microbatches > MOST_MICRO_BATCHES:
        parts.append(f"micro-batches 3 to {run.num_microbatches} repeat the second: not run")
    if not result.fits:
        parts.append(oom_text(result.report["out_of_memory"]))
    parts.append("not real: no kernel ran and no value was computed, so nothing is known of time, "
                 "and sizes that depend on values may differ")
    return "\n\n".join(parts)


def oom_text(failure: dict[str, Any]) -> str:
    """Where the run ran out of memory on a GPU of its kind; the table is that of one with room."""
    after = failure["after"]
    where = f"after {after['instant']} of step {after['step']}" if after else "while it was made"
    return (f"does not fit: out of memory {where}\n{failure['message']}\n"
            "the table above is that of the same GPU with room for everything")
