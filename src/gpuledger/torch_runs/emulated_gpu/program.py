"""Runs a user's program on the emulated GPU, in a child process, and returns its report."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import GpuledgerError, InputError
from .device import EmulatedDevice
from .environment import emulated_environment
from .launch import DEFAULT_GPUS_PER_NODE, Launch, parse_command, rank_environment

LAUNCHER = "gpuledger.torch_runs.emulated_gpu.launcher"
SCHEMA_VERSION = 1
STDERR = 2
# Events of the allocator's history that are kept, the latest: 60 steps of GPT-2, some 100 MB of
# host memory.
MAX_EVENTS = 100_000


@dataclass(frozen=True)
class ProgramOptions:
    """How a program is emulated. Left out: one rank, as many devices as it needs, no files.

    ``quiet_stdout`` sends what the program prints to stderr, so that stdout is the report's alone.
    """

    device: EmulatedDevice
    devices: int | None = None
    world_size: int | None = None
    rank: int = 0
    snapshot: Path | None = None
    trace: Path | None = None
    quiet_stdout: bool = False


@dataclass(frozen=True)
class ProgramResult:
    """What came of it: the program's own exit status, and the report as plain data."""

    exit_status: int
    report: dict[str, Any]


def run_program(command: list[str], options: ProgramOptions) -> ProgramResult:
    """Runs ``command`` as one rank on the emulated GPU.

    Raises InputError for a command or ranks that make no sense, GpuledgerError where there is no
    emulated GPU or the program was killed before it could be reported on.
    """
    launch = parse_command(command)
    world_size, ranks_per_node = _ranks(launch, options)
    devices = options.devices or (min(ranks_per_node, world_size) if world_size else 1)
    environment = emulated_environment(options.device, devices=devices, trace=options.trace)
    environment["PYTHONPATH"] = os.pathsep.join(
        path for path in (environment.get("PYTHONPATH"), _package_root()) if path)
    if world_size:
        environment |= rank_environment(options.rank, world_size, devices)
    with tempfile.TemporaryDirectory() as folder:
        report_path = Path(folder) / "report.json"
        settings = {
            "kind": launch.kind, "target": launch.target, "report": str(report_path),
            "snapshot": str(options.snapshot.absolute()) if options.snapshot else None,
            "distributed": world_size is not None, "max_events": MAX_EVENTS,
        }
        status = _run_child(launch, settings, environment, options.quiet_stdout)
        if not report_path.exists():
            raise _no_report(status)
        seen = json.loads(report_path.read_text())
    return ProgramResult(status, _report(command, options, world_size, devices, seen))


def _ranks(launch: Launch, options: ProgramOptions) -> tuple[int | None, int]:
    """(world size or None, ranks per node), from the options and the command, which must agree."""
    asked, written = options.world_size, launch.world_size
    if asked is not None and written is not None and asked != written:
        raise InputError(
            f"--world-size {asked}, but the command starts {written} ranks",
            hint="name the world size in one place",
        )
    world_size = asked if asked is not None else written
    if world_size is not None and not 0 <= options.rank < world_size:
        raise InputError(f"--rank {options.rank} of {world_size} ranks",
                         hint=f"ranks are 0 to {world_size - 1}")
    if world_size is None and options.rank:
        raise InputError(f"--rank {options.rank} without a world size", hint="pass --world-size N")
    return world_size, launch.ranks_per_node or options.devices or DEFAULT_GPUS_PER_NODE


def _package_root() -> str:
    return str(Path(__file__).resolve().parents[3])


def _run_child(launch: Launch, settings: dict[str, Any], environment: dict[str, str],
               quiet_stdout: bool) -> int:
    command = [sys.executable, *launch.python_flags, "-m", LAUNCHER, json.dumps(settings),
               *launch.arguments]
    sys.stdout.flush()
    child = subprocess.Popen(command, env=environment,
                             stdout=STDERR if quiet_stdout else None)
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        return child.wait()


def _no_report(status: int) -> GpuledgerError:
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
    return GpuledgerError(
        f"the program was ended {how} before its memory could be reported",
        hint="if it runs on a real GPU: --trace FILE names the CUDA calls that do nothing here",
    )


def _report(command: list[str], options: ProgramOptions, world_size: int | None, devices: int,
            seen: dict[str, Any]) -> dict[str, Any]:
    device = options.device
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "gpu": {"name": device.name, "capability": list(device.capability),
                "num_sms": device.num_sms, "total_bytes": device.total_bytes,
                "context_bytes": device.context_bytes, "devices": devices},
        "rank": options.rank if world_size else None,
        "world_size": world_size,
        **seen,
    }
