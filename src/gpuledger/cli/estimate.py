"""`gpuledger estimate`: resolve, estimate, print."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..config import RunOptions, resolve_run
from ..estimate import Estimate, device_of, estimate
from ..memory.allocator import AllocatorSettings, parse_alloc_conf
from ..memory.allocator.allocator import DEFAULT_SETTINGS
from ..units import gib

if TYPE_CHECKING:
    from ..advice import Advice

FITS_NOT = 1


@dataclass(frozen=True)
class EstimateOptions:
    """How to estimate and print, beside the run itself."""

    convention: str = "megatron"
    alloc_conf: str | None = None
    events: Path | None = None
    snapshot: Path | None = None
    explain: bool = False
    require_fit: bool = False
    json: bool = False


def run_estimate(source: str, options: RunOptions, how: EstimateOptions) -> int:
    """Print the estimate and return the exit status: 0, or 1 where a required fit is not met."""
    run, assumptions = resolve_run(source, options)
    settings = parse_alloc_conf(how.alloc_conf) if how.alloc_conf else DEFAULT_SETTINGS
    result = estimate(run, convention=how.convention, replay=True, settings=settings,
                      assumptions=assumptions)
    if how.events or how.snapshot:
        write_files(result, settings, how)
    advice: tuple[Advice, ...] = ()
    if not result.memory.fits:
        from ..advice import advise
        advice = advise(result)
    if how.json:
        from ..report.estimate_json import estimate_json
        typer.echo(estimate_json(result, advice))
    else:
        print_text(result, advice, how)
    return FITS_NOT if how.require_fit and not result.memory.fits else 0


def write_files(result: Estimate, settings: AllocatorSettings, how: EstimateOptions) -> None:
    """The stream and the snapshot, where they are asked for."""
    from ..memory.export import write_events, write_run_snapshot

    device = device_of(result.run)
    if how.events:
        write_events(result.run, device, how.events)
        typer.echo(f"wrote {how.events}", err=True)
    if how.snapshot:
        write_run_snapshot(result.run, device, settings, how.snapshot)
        typer.echo(f"wrote {how.snapshot}: open it in PyTorch's memory viewer", err=True)


def print_text(result: Estimate, advice: tuple[Advice, ...], how: EstimateOptions) -> None:
    """The table on stdout, assumptions and warnings on stderr."""
    from ..report.estimate_table import estimate_table

    typer.echo(estimate_table(result, advice))
    if how.alloc_conf:
        typer.echo("\n" + effect_of_settings(result, how.alloc_conf))
    if how.explain:
        from ..report.explain import explain
        typer.echo("\n" + explain(result))
    for line in result.assumptions:
        typer.echo(f"assumed: {line}", err=True)
    for line in result.warnings:
        typer.echo(f"warning: {line}", err=True)


def effect_of_settings(result: Estimate, alloc_conf: str) -> str:
    """Reserved bytes with the allocator's settings beside those without."""
    without = estimate(result.run, replay=True).memory.peak_reserved_bytes or 0
    reserved = result.memory.peak_reserved_bytes or 0
    return (f"PYTORCH_CUDA_ALLOC_CONF={alloc_conf}: peak reserved {gib(reserved)} instead of {gib(without)}, "
            f"{gib(abs(reserved - without))} {'less' if reserved <= without else 'more'}")
