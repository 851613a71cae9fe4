"""`gpuledger calibrate`: measures this machine's GPU and writes a GPU file that every command
accepts."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..config.cluster import Gpu
from ..files import write_whole
from ..torch_runs.child import require_torch

if TYPE_CHECKING:
    from ..torch_runs.calibration import Calibration


def run_calibrate(
    gpu: str | None, output: Path | None, seconds: float, *, as_json: bool = False
) -> int:
    """Measure, write the file, print what was measured beside what is assumed without it.

    Raises InputError without PyTorch, without a GPU, or where no preset describes it.
    """
    require_torch("calibrate")
    from ..torch_runs.calibration import base_gpu, run_calibration

    base = base_gpu(gpu)
    result = run_calibration(base, seconds, lambda line: typer.echo(f"measuring: {line}", err=True))
    if os.environ.get("RANK", "0") != "0":  # torchrun: one rank speaks for all
        return 0
    path = write_whole(output or Path(f"{base.name}-calibrated.yaml"), gpu_yaml(result.gpu))
    typer.echo(json.dumps(content(result), indent=2) if as_json else table(result))
    typer.echo(f"wrote {path}; use it with --gpu {path}", err=True)
    return 0


def gpu_yaml(gpu: Gpu) -> str:
    """The GPU as a file of its own: its record with the measured curves."""
    import yaml

    text: str = yaml.safe_dump(gpu.model_dump(), sort_keys=False, width=100)
    return text


def content(result: Calibration) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema_version": 1,
        "gpu": result.gpu.model_dump(mode="json"),
        "measured": [asdict(row) for row in result.rows],
        "not_measured": result.not_measured,
    }


def table(result: Calibration) -> str:
    """Measured beside assumed, and what was not measured."""
    from tabulate import tabulate

    rows = [
        [
            row.what,
            f"{row.measured:.4g}",
            "" if row.assumed is None else f"{row.assumed:.4g}",
            row.unit,
        ]
        for row in result.rows
    ]
    text = str(
        tabulate(
            rows,
            ["", "measured", "assumed or predicted", "unit"],
            disable_numparse=True,
            colalign=("left", "right", "right", "left"),
        )
    )
    return "\n".join([text, *(f"not measured: {line}" for line in result.not_measured)])
