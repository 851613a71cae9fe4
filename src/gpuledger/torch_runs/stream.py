"""The caching allocator's own record: every allocation and free of a step, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpuledger.config.run import Run

from .step import Trainer
from .trace import Trace

Event = tuple[int, int, int]  # (+1 allocates or -1 frees, allocation number, requested bytes)
BEFORE_RECORD = -1  # number of an allocation that is older than the record
MAX_ENTRIES = 4_000_000  # of the allocator's ring buffer
WARMUP_STEPS = 2  # the first makes optimizer states and workspaces


class History:
    """What `recording()` yields: the allocator's trace entries since it began."""

    def __init__(self, device: int):
        self.device = device

    def entries(self) -> list[dict[str, Any]]:
        """PyTorch's trace entries so far: action, addr, size and more."""
        traces: list[list[dict[str, Any]]] = torch.cuda.memory._snapshot()["device_traces"]
        return traces[self.device]

    def events(self, free: str = "free_completed") -> list[Event]:
        """The allocations and frees so far, numbered in order of allocation. free: see Trace."""
        moves = Trace(self.entries(), free).moves
        return [(m.sign, BEFORE_RECORD if m.number is None else m.number, m.nbytes) for m in moves]


@contextmanager
def recording() -> Iterator[History]:
    """Records the current device's allocator events, without stacks."""
    torch.cuda.init()
    record = torch.cuda.memory._record_memory_history
    record(max_entries=MAX_ENTRIES, stacks="python", context=None)
    try:
        yield History(torch.cuda.current_device())
    finally:
        record(enabled=None)


def record_stream_of_step(
    trainer: Trainer, warmup_steps: int = 0, free: str = "free_completed"
) -> dict[str, Any]:
    """One step of a trainer, in steady state after `warmup_steps`. free: see Trace.

    Returns events [(+1 | -1, number, requested bytes)], the requested bytes before it, at its peak
    and after it, the parameters, and the device (sizes of scratch depend on its SMs).
    """
    for _ in range(warmup_steps):
        trainer.step()
    torch.cuda.reset_peak_memory_stats()
    before = requested("current")
    with recording() as history:
        trainer.step()
        events = history.events(free)
    after, peak = requested("current"), requested("peak")
    counted = {"before_bytes": before, "peak_bytes": peak, "after_bytes": after}
    return {"events": events, **counted, **facts(trainer)}


def record_stream_of_run(run: Run, steps: int = 3) -> dict[str, Any]:
    """A whole run from an empty allocator: model, optimizer, batch, `steps` steps.

    It must be the first thing that the process does on the device. Returns the events and
    memory_stats() at the end.
    """
    with recording() as history:
        trainer = make_trainer(run)
        for _ in range(steps):
            trainer.step()
        events = history.events()
    return {"events": events, "memory_stats": dict(torch.cuda.memory_stats()), **facts(trainer)}


def make_trainer(run: Run) -> Trainer:
    """Network, optimizer and batch of a run on the current CUDA device."""
    return Trainer(run.model, run.training, run.num_microbatches, "cuda", run.parallel)


def requested(which: str) -> int:
    """requested_bytes.all.current or .peak."""
    value: int = torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]
    return value


def facts(trainer: Trainer) -> dict[str, Any]:
    """What the comparison needs to know about model and device."""
    properties = torch.cuda.get_device_properties()
    return {
        "parameters": sum(p.numel() for p in trainer.network.parameters()),
        "num_sms": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "torch_version": torch.__version__,
    }
