"""Streams that PyTorch 2.14.1 emitted on the emulated GPU; see torch_runs/self_check/golden.py."""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gpuledger.config.run import Run
from gpuledger.program.device import Device

FOLDER = Path(__file__).parent / "data" / "streams"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


@dataclass(frozen=True)
class Golden:
    """events: (+1 allocates, -1 frees; number of the allocation; requested bytes)."""

    run: Run
    device: Device
    events: list[tuple[int, int, int]]


def golden(name: str) -> Golden:
    """One recorded steady step: by the seed of its draw, or by the name of its run."""
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    major, minor = map(int, recorded["capability"].split("."))
    events = [(sign, number, nbytes) for sign, number, nbytes in recorded["events"]]
    return Golden(Run.model_validate(recorded["run"]), Device((major, minor), recorded["num_sms"]),
                  events)
