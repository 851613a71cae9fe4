"""Streams recorded from PyTorch, for tests on machines without it.

`python -m gpuledger.torch_runs.self_check.golden FOLDER SEED...` writes one file per seed: the run,
the device's capability and SMs, PyTorch's version, and the events of a steady step.
"""
from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch

from gpuledger.config.run import Run
from gpuledger.files import write_whole
from gpuledger.torch_runs.stream import make_trainer, record_stream_of_step

from .case import WARMUP_STEPS
from .draw import draw_run

LARGEST_STREAM = 1200                 # events, so that a file stays small


def main(folder: Path, sources: list[str]) -> None:
    """Each source is a seed, for the first drawn run whose stream is short enough, or a run as
    JSON."""
    for source in sources:
        path = Path(source)
        if path.suffix == ".json":
            recorded = record(Run.model_validate_json(path.read_text()))
        else:
            recorded = record_drawn(random.Random(int(source)))
        write_whole(
            folder / f"{path.stem}.json", json.dumps(recorded, separators=(",", ":")) + "\n"
        )


def record_drawn(rng: random.Random) -> dict[str, object]:
    """The first drawn run whose stream is short enough."""
    while True:
        recorded = record(draw_run(rng))
        if len(recorded["events"]) <= LARGEST_STREAM:                  # type: ignore[arg-type]
            return recorded


def record(run: Run) -> dict[str, object]:
    """The run, the device, and its stream."""
    stream = record_stream_of_step(make_trainer(run), warmup_steps=WARMUP_STEPS)
    torch.cuda.empty_cache()
    facts = {name: stream[name] for name in ("capability", "num_sms", "torch_version")}
    return {**facts, "run": json.loads(run.model_dump_json()), "events": stream["events"]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
