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

LARGEST_STREAM = 1200                 # events: a file stays small


def main(folder: Path, seeds: list[int]) -> None:
    """For each seed the first drawn run whose stream is short enough."""
    for seed in seeds:
        rng = random.Random(seed)
        recorded = None
        while recorded is None:
            recorded = record(draw_run(rng))
        write_whole(folder / f"{seed}.json", json.dumps(recorded, separators=(",", ":")) + "\n")


def record(run: Run) -> dict[str, object] | None:
    """None where the stream is too long."""
    stream = record_stream_of_step(make_trainer(run), warmup_steps=WARMUP_STEPS)
    torch.cuda.empty_cache()
    if len(stream["events"]) > LARGEST_STREAM:
        return None
    facts = {name: stream[name] for name in ("capability", "num_sms", "torch_version")}
    return {**facts, "run": json.loads(run.model_dump_json()), "events": stream["events"]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]])
