"""`gpuledger estimate`: resolve, estimate, print."""
from __future__ import annotations

from dataclasses import dataclass

import typer

from ..advice import Advice, advise
from ..config import RunOptions, resolve_run
from ..estimate import Estimate, estimate
from ..memory.allocator import parse_alloc_conf
from ..memory.allocator.allocator import DEFAULT_SETTINGS

FITS_NOT = 1


@dataclass(frozen=True)
class EstimateOptions:
    """How to estimate and print, beside the run itself."""

    convention: str = "megatron"
    alloc_conf: str | None = None
    explain: bool = False
    require_fit: bool = False
    json: bool = False


def run_estimate(source: str, options: RunOptions, how: EstimateOptions) -> int:
    """Print the estimate and return the exit status: 0, or 1 where a required fit is not met."""
    run, assumptions = resolve_run(source, options)
    settings = parse_alloc_conf(how.alloc_conf) if how.alloc_conf else DEFAULT_SETTINGS
    result = estimate(run, convention=how.convention, replay=True, settings=settings,
                      assumptions=assumptions)
    advice = () if result.memory.fits else advise(result)
    if how.json:
        from ..report.estimate_json import estimate_json
        typer.echo(estimate_json(result, advice))
    else:
        print_text(result, advice, how)
    return FITS_NOT if how.require_fit and not result.memory.fits else 0


def print_text(result: Estimate, advice: tuple[Advice, ...], how: EstimateOptions) -> None:
    """The table on stdout, assumptions and warnings on stderr."""
    from ..report.estimate_table import estimate_table

    typer.echo(estimate_table(result, advice))
    if how.explain:
        from ..report.explain import explain
        typer.echo("\n" + explain(result))
    for line in result.assumptions:
        typer.echo(f"assumed: {line}", err=True)
    for line in result.warnings:
        typer.echo(f"warning: {line}", err=True)
