"""`gpuledger mfu`: a measured throughput as MFU and HFU, under every convention at once."""
from __future__ import annotations

import dataclasses
import json

import typer

from ..compute.convention_formulas import CONVENTIONS
from ..compute.conventions import DEFAULT_CONVENTION
from ..compute.mfu import Measured, MfuReport, Utilization, mfu_report
from ..config.run import Run

SCHEMA_VERSION = 1


def mfu(run: Run, measured: Measured, *, convention: str = DEFAULT_CONVENTION,
        as_json: bool = False) -> None:
    """Print the utilization of a measured run: data to stdout, warnings to stderr.

    Raises InputError as `mfu_report` does.
    """
    report = mfu_report(run, measured, convention)
    typer.echo(mfu_json(run, report) if as_json else mfu_table(run, report))
    if not as_json:
        for warning in report.warnings:
            typer.echo(f"warning: {warning}", err=True)


def mfu_json(run: Run, report: MfuReport) -> str:
    """The report as JSON: fractions for utilizations, FLOP/s for rates, FLOPs per token exact."""
    content = {"schema_version": SCHEMA_VERSION, "run": run.model_dump(mode="json"),
               **dataclasses.asdict(report)}
    return json.dumps(content, indent=2)


def mfu_table(run: Run, report: MfuReport) -> str:
    """The report as text: the throughput first, because it depends on no convention."""
    from tabulate import tabulate

    peak = f"dense {report.dtype} {report.dense_peak_flops_per_second / 1e12:g}"
    paper = any(row.hfu_paper is not None for row in report.rows)
    headers = ["convention", "GFLOP/token", "TFLOP/s/GPU", f"MFU ({peak})",
               "HFU (whole block)", *(["HFU (paper)"] if paper else []), "attention",
               "counted attention", "counted outside the blocks"]
    table = tabulate([_cells(row) for row in report.rows], headers, disable_numparse=True,
                     colalign=["left", *["right"] * (len(headers) - 3), "left", "left"])
    return f"{_heading(run, report)}\n\n{table}"


def _heading(run: Run, report: MfuReport) -> str:
    recompute = run.training.recompute
    policy = recompute if isinstance(recompute, str) else f"every {recompute.every}"
    gpus = "1 GPU" if report.gpus == 1 else f"{report.gpus} GPUs"
    return (f"{report.tokens_per_second_per_gpu:,.1f} tokens/s/GPU   {run.model.name}, "
            f"{run.training.seq_len:,} tokens a sequence, recompute {policy}, "
            f"{gpus} ({report.gpu})")


def _cells(row: Utilization) -> list[str]:
    convention = CONVENTIONS[row.convention]
    paper = [] if row.hfu_paper is None else [f"{100 * row.hfu_paper:.1f} %"]
    return [
        row.convention,
        f"{row.model_flops_per_token / 1e9:,.3f}",
        f"{row.flops_per_second_per_gpu / 1e12:,.1f}",
        f"{100 * row.mfu:.1f} %",
        f"{100 * row.hfu:.1f} %",
        *paper,
        f"{100 * row.attention_share:.1f} %",
        convention.attention,
        convention.vocabulary,
    ]
