"""`gpuledger emulate -- python train.py ...`: any PyTorch program on an emulated GPU."""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import typer

from ..config.cluster import Gpu
from ..config.presets import read_preset
from ..files import write_whole
from ..torch_runs.emulated_gpu.device import device_from_gpu
from ..torch_runs.emulated_gpu.program import ProgramOptions, run_program
from ..torch_runs.program_report import report_text

DEFAULT_GPU = "h100-80gb-sxm"


@dataclass(frozen=True)
class EmulateOptions:
    """The options of the command, as typed."""

    gpu: str = DEFAULT_GPU
    devices: int | None = None
    world_size: int | None = None
    rank: int = 0
    as_json: bool = False
    stats: Path | None = None
    snapshot: Path | None = None
    trace: Path | None = None


def emulate_program(command: list[str], options: EmulateOptions) -> int:
    """Runs the program, prints the report to stdout and returns the program's own exit status.

    With ``as_json`` stdout holds one JSON document and what the program prints goes to stderr.
    Raises GpuledgerError (InputError for bad input) with a message and a hint.
    """
    device = device_from_gpu(Gpu.model_validate(read_preset("gpus", options.gpu)))
    result = run_program(command, ProgramOptions(
        device=device, devices=options.devices, world_size=options.world_size, rank=options.rank,
        snapshot=options.snapshot, trace=options.trace, quiet_stdout=options.as_json,
    ))
    if options.stats:
        write_whole(options.stats, json.dumps(result.report, indent=2))
    as_text = json.dumps(result.report, indent=2) if options.as_json else report_text(result.report)
    typer.echo(as_text)
    return result.exit_status
