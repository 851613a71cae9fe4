"""One configuration: the engine's stream of a steady step against PyTorch's."""
from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuledger.config.run import Run
from gpuledger.memory.run import steady_step
from gpuledger.memory.step import StepRunner
from gpuledger.program.device import Device
from gpuledger.program.model import build
from gpuledger.torch_runs.stream import make_trainer, record_stream_of_step

from .compare import Difference, first_difference

# the first makes states and workspaces, the second is steady already
WARMUP_STEPS = 2


@dataclass(frozen=True)
class Mismatch:
    """What parts, and the names of the engine's allocations around it."""

    difference: Difference
    names: tuple[str, ...]

    def __str__(self) -> str:
        return (f"  at {self.difference.position}\n  engine  {list(self.names)}\n"
                f"  pytorch {self.difference.pytorch}")


def current_device() -> Device:
    """The CUDA device that PyTorch runs on, real or emulated."""
    properties = torch.cuda.get_device_properties(0)
    return Device((properties.major, properties.minor), properties.multi_processor_count)


def check_case(run: Run, device: Device) -> Mismatch | None:
    """None where both streams are equal. Raises what PyTorch or the engine raises."""
    truth = record_stream_of_step(make_trainer(run), warmup_steps=WARMUP_STEPS)["events"]
    torch.cuda.empty_cache()
    runner = steady_step(build(run.model, run.training, device), run.training,
                         run.num_microbatches)
    difference = first_difference(runner.memory.events, truth)
    if difference is None:
        return None
    return Mismatch(difference, tuple(named(runner, difference)))


def named(runner: StepRunner, difference: Difference) -> list[str]:
    """`+bytes name` of the engine's events around the difference; allocations before the step
    count."""
    tensors = runner.memory.tensors
    before = len(tensors) - sum(sign > 0 for sign, _, _ in runner.memory.events)
    return [f"{'+' if sign > 0 else '-'}{nbytes} "
            f"{tensors[before + number].name if number >= 0 else 'older'}"
            for sign, number, nbytes in difference.engine]


def label(run: Run) -> str:
    """Both records as JSON, without defaults: enough to draw the case again by hand."""
    return (f"{run.model.model_dump_json(exclude_defaults=True)} "
            f"{run.training.model_dump_json(exclude_defaults=True)}")
