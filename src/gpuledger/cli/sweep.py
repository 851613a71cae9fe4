"""`gpuledger sweep`: a grid of runs as a table, CSV, JSON and a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from ..axes import parse_axis
from ..config import RunOptions
from ..errors import InputError
from ..files import write_whole
from ..sweep import sweep
from .progress import Progress

INTERRUPTED = 130


@dataclass(frozen=True)
class SweepOptions:
    """What to vary, and where the results go beside the table."""

    over: Sequence[str]
    replay: bool = False
    csv: Path | None = None
    chart: Path | None = None
    json: bool = False


def run_sweep(source: str, options: RunOptions, how: SweepOptions) -> int:
    """Evaluate the grid and print it; returns 130 where it was interrupted.

    The cells that were finished by then are printed and written. Raises InputError.
    """
    from ..report.sweep_output import sweep_csv, sweep_json, sweep_table

    if not how.over:
        raise InputError(
            "nothing to vary", "name at least one key, for example --over micro_batch_size=1,2,4"
        )
    axes = [parse_axis(text) for text in how.over]
    if how.chart:
        from ..report.charts.save import check_format
        from ..report.sweep_chart import check_drawable

        check_format(how.chart)
        check_drawable(axes)
    progress = Progress("cells")
    result = sweep(source, options, axes, replay=how.replay, progress=progress)
    progress.end()
    if how.csv:
        write_whole(how.csv, sweep_csv(result))
    typer.echo(sweep_json(result) if how.json else sweep_table(result))
    if result.finished < len(result.cells):
        typer.echo(
            f"interrupted after {result.finished:,} of {len(result.cells):,} cells", err=True
        )
        return INTERRUPTED
    if how.chart:
        from ..report.charts.save import write_chart
        from ..report.sweep_chart import sweep_chart

        write_chart(how.chart, sweep_chart(source, options, result))
    return 0
