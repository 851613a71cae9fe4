"""Measure a run in a process of its own, on the emulated GPU or on a real one. Imports no torch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.config.cluster import Gpu
from gpuledger.config.run import Run
from gpuledger.errors import GpuledgerError, InputError

from .emulated_gpu import device_from_gpu, emulated_environment

MODULE = "gpuledger.torch_runs.measure"
FORKS = "gpuledger.torch_runs.forks"
BAD_INPUT = 2                               # exit status of a child that refuses its input
SHOWN_LINES = 12                            # of a crashed child's stderr


@dataclass(frozen=True)
class Options:
    """What to measure besides the counters of the first steps."""

    account: bool = True
    stream: bool = False
    timed_steps: int = 0
    flops: bool = False
    snapshot: Path | None = None

    def arguments(self) -> list[str]:
        """For the child's command line."""
        flags = {"--no-account": not self.account, "--stream": self.stream, "--flops": self.flops}
        words = [flag for flag, wanted in flags.items() if wanted]
        words += ["--timed-steps", str(self.timed_steps)] if self.timed_steps else []
        return words + (["--snapshot", str(self.snapshot.absolute())] if self.snapshot else [])


def measure_emulated(run: Run, options: Options) -> dict[str, Any]:
    """The report of a run on an emulated GPU of the run's kind.

    Raises:
        InputError: PyTorch is not installed, or it is a build that cannot be emulated.
        GpuledgerError: the measuring process died.
    """
    require_torch("emulate")
    return measure_in_child(run, options, environment_of(run.cluster.gpu))


def environment_of(gpu: Gpu) -> dict[str, str]:
    """The environment of a process that sees one emulated GPU of this kind."""
    return emulated_environment(device_from_gpu(gpu))


def require_torch(command: str) -> None:
    """Raises InputError where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"gpuledger {command} needs PyTorch, which is not installed",
                         "pip install 'gpuledger[torch]'; gpuledger estimate needs none")


def measure_in_child(run: Run, options: Options, environment: Mapping[str, str]) -> dict[str, Any]:
    """Writes the run to a temporary folder, measures it in a new process and reads the report."""
    with tempfile.TemporaryDirectory(prefix="gpuledger-") as folder:
        source, out = Path(folder, "run.json"), Path(folder, "report.json")
        source.write_text(run.model_dump_json())
        command = [sys.executable, "-m", MODULE, str(source), "--out", str(out)]
        done = subprocess.run(
            [*command, *options.arguments()], env=with_this_package(environment),
            capture_output=True, text=True)
        if done.returncode == 0:
            report: dict[str, Any] = json.loads(out.read_text())
            return report
    raise child_error(done.returncode, done.stderr)


class Measurer:
    """Measures runs one after another on one device; torch is imported once. A context manager."""

    def __init__(self, environment: Mapping[str, str], limit_seconds: float):
        self.limit_seconds = limit_seconds
        self.process = subprocess.Popen(
            [sys.executable, "-m", FORKS], env=with_this_package(environment), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()          # waits, and closes both pipes

    def measure(self, run: Run, options: Options) -> dict[str, Any]:
        """The report, from a process of its own. Raises as measure_in_child."""
        with tempfile.TemporaryDirectory(prefix="gpuledger-") as folder:
            source, out, errors = (Path(folder, n) for n in ("run.json", "report.json", "errors"))
            source.write_text(run.model_dump_json())
            arguments = [str(source), "--out", str(out), *options.arguments()]
            status = self.ask({"arguments": arguments, "errors": str(errors),
                               "seconds": self.limit_seconds})
            if status == 0:
                report: dict[str, Any] = json.loads(out.read_text())
                return report
            raise child_error(status, errors.read_text() if errors.exists() else "")

    def probe(self) -> dict[str, Any]:
        """The device's facts. Raises InputError where PyTorch sees none."""
        with tempfile.TemporaryDirectory(prefix="gpuledger-") as folder:
            out, errors = Path(folder, "device.json"), Path(folder, "errors")
            status = self.ask({"arguments": ["--probe", "--out", str(out)], "errors": str(errors),
                               "seconds": self.limit_seconds})
            if status == 0:
                device: dict[str, Any] = json.loads(out.read_text())
                return device
            raise child_error(status, errors.read_text() if errors.exists() else "")

    def ask(self, request: dict[str, Any]) -> int:
        """The child's exit status, negative for a signal (the time limit's is SIGKILL)."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise GpuledgerError("the process that measures runs is gone",
                                 "python -c 'import torch' says whether PyTorch can be imported")
        status: int = json.loads(answer)["status"]
        return status


def with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """The child imports the gpuledger that its parent runs."""
    here = str(Path(__file__).resolve().parents[2])
    path = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{here}{os.pathsep}{path}" if path else here}


def child_error(status: int, stderr: str) -> GpuledgerError:
    """What the child said: its own error and hint, or the end of its traceback."""
    lines = stderr.strip().splitlines()
    told = {word: [line.removeprefix(f"{word}: ") for line in lines if line.startswith(f"{word}: ")]
            for word in ("error", "hint")}
    if status == BAD_INPUT and told["error"] and told["hint"]:
        return InputError(told["error"][0], told["hint"][0])
    return GpuledgerError(f"the measuring process ended with status {status}: {lines[-1:]}",
                          "its last words: " + " | ".join(lines[-SHOWN_LINES:]))
