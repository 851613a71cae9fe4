"""One run, measured in this process: `python -m gpuledger.torch_runs.measure RUN.json --out FILE`.

It needs a CUDA device, real or emulated, and should be the first thing that the process does on
it. The parent process decides which device that is, see `child`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gpuledger.config.run import Run
from gpuledger.errors import GpuledgerError, InputError
from gpuledger.files import write_whole

from .child import BAD_INPUT, Options
from .counters import CounterMeter
from .divided import refuse_undividable
from .environment import device_facts, is_emulated, software_facts
from .live_bytes import live_bytes_of_step
from .meter import account_for_step
from .step import MODEL_CREATED, Trainer
from .stream import make_trainer, record_stream_of_step

SCHEMA_VERSION = 1
COUNTED_STEPS = 3  # the first makes optimizer states, the second settles the cache
LARGEST_BLOCKS = 10
NO_KERNEL = "No available kernel"  # of scaled_dot_product_attention


def measure(run: Run, options: Options) -> dict[str, Any]:
    """Everything as one JSON object; running out of memory is an outcome, not an error.

    Raises:
        InputError: the run has something that this PyTorch lacks.
        NotYetError: the run is divided in a way that this process cannot be one rank of.
    """
    refuse_undividable(run.parallel)
    meter = CounterMeter()
    report: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "run": run.model_dump(mode="json")}
    report |= {"software": software_facts(), "emulated": is_emulated(), "outcome": "ok"}
    try:
        report |= measured(run, options, meter)
    except torch.cuda.OutOfMemoryError as error:
        report |= {"outcome": "out of memory", "out_of_memory": failure(error, meter)}
    except RuntimeError as error:
        raise no_kernel(run) if NO_KERNEL in str(error) else error from error
    report["counters"] = [asdict(boundary) for boundary in meter.boundaries]
    report["device"] = device_facts()
    return report


def measured(run: Run, options: Options, meter: CounterMeter) -> dict[str, Any]:
    """Counters of the first steps, then what the options ask for, each in steps of its own."""
    trainer = make_trainer(run)
    meter(MODEL_CREATED)
    for _ in range(COUNTED_STEPS):
        meter.next_step()
        trainer.step(meter)
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in trainer.network.parameters())}
    if options.account:
        found["account"] = asdict(account_for_step(trainer))
        found["timeline"] = live_bytes_of_step(trainer)
    if options.stream:
        found["stream"] = record_stream_of_step(trainer)
    if options.timed_steps and not is_emulated():
        from .speed import time_steps

        found["time"] = asdict(time_steps(trainer, options.timed_steps))
    if options.flops:
        from .speed import count_flops

        found["flops"] = count_flops(trainer)
    if options.snapshot:
        dump_snapshot(trainer, options.snapshot)
    return found


def require_device() -> None:
    """Raises InputError where PyTorch sees no CUDA device."""
    if not torch.cuda.is_available():
        raise InputError("PyTorch sees no CUDA device", "gpuledger emulate needs none")


def no_kernel(run: Run) -> InputError:
    """What scaled_dot_product_attention's refusal means."""
    return InputError(
        f"PyTorch has no {run.training.attention} attention for {run.training.precision} on "
        f"{torch.cuda.get_device_name()}", "use attention: math or eager")


def failure(error: torch.cuda.OutOfMemoryError, meter: CounterMeter) -> dict[str, Any]:
    """PyTorch's message, the last boundary passed, and the largest live blocks."""
    last = meter.boundaries[-1] if meter.boundaries else None
    stats = torch.cuda.memory_stats()
    blocks = (block["size"] for segment in torch.cuda.memory_snapshot()
              for block in segment["blocks"] if block["state"] == "active_allocated")
    return {
        "message": str(error).split("\n")[0],
        "after": {"step": last.step, "instant": last.instant} if last else None,
        "allocated_bytes": stats["allocated_bytes.all.current"],
        "reserved_bytes": stats["reserved_bytes.all.current"],
        "largest_blocks_bytes": sorted(blocks, reverse=True)[:LARGEST_BLOCKS],
    }


def dump_snapshot(trainer: Trainer, path: Path) -> None:
    """One more step with Python stacks, for https://pytorch.org/memory_viz."""
    record = torch.cuda.memory._record_memory_history
    record(context="all", stacks="python")
    trainer.step()
    torch.cuda.memory._dump_snapshot(str(path))
    record(enabled=None)


def main(arguments: list[str]) -> int:
    """Reads the run, measures, writes the report whole. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpuledger.torch_runs.measure")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--probe", action="store_true", help="the device's facts alone")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-account", dest="account", action="store_false")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--timed-steps", type=int, default=0)
    parser.add_argument("--flops", action="store_true")
    parser.add_argument("--snapshot", type=Path)
    given = vars(parser.parse_args(arguments))
    source, out, probe = given.pop("run"), given.pop("out"), given.pop("probe")
    try:
        require_device()
        report = device_facts() if probe else measure(
            Run.model_validate_json(source.read_text()), Options(**given))
    except GpuledgerError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    write_whole(out, json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
