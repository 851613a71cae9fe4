"""What `emulate --json` and `validate --json` print, as reports read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.problems import shown
from ..config.run import Run
from ..errors import InputError
from .compare import flat, paired

if TYPE_CHECKING:
    from .charts.parity import Pair

HINT = "give the output of `gpuledger emulate RUN --json` or `gpuledger validate RUN --json`"
COUNTERS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
PARTS = ("model", "training", "parallel")  # of a run: what its step depends on, beside the GPU
MOST_KEYS = 3  # that are named where two runs differ


@dataclass(frozen=True)
class MeasuredStep:
    """Live bytes over a steady step. See `timeline` in docs/json.md.

    kind: emulated or measured. torch: its version. marks: (events before it, phase). points: (events before it, bytes).
    """

    kind: str
    torch: str
    events: int
    marks: tuple[tuple[int, str], ...]
    points: tuple[tuple[int, int], ...]

    @property
    def last_micro_batch(self) -> tuple[int, list[int]]:
        """Where it begins, and where each phase from there on does, counted from that event."""
        number = max(i for i, (_, name) in enumerate(self.marks) if name == "forward")
        begin = self.marks[number][0]
        return begin, [start - begin for start, _ in self.marks[number:]]


@dataclass(frozen=True)
class Measurement:
    """One file: the run, its counters beside the estimate's, and its step where the file has it."""

    path: Path
    run: dict[str, Any]
    pairs: tuple[Pair, ...]
    step: MeasuredStep | None

    def differences(self, run: Run) -> list[str]:
        """What tells this run from the measured one: `training.seq_len 1024, measured 512`."""
        mine = run.model_dump(mode="json")
        found = [
            f"{key} {own}, measured {theirs}"
            for part in PARTS
            for key, own, theirs in paired(flat({part: mine[part]}), flat({part: self.run[part]}))
            if own != theirs
        ]
        own, theirs = mine["cluster"]["gpu"]["name"], self.run["cluster"]["gpu"]["name"]
        return found + ([f"gpu {own}, measured {theirs}"] if own != theirs else [])


def read_measurement(path: Path) -> Measurement:
    """Raises InputError for a file that is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        run = content["run"]
        return Measurement(path, run, tuple(pairs_of(run["name"], content)), step_of(content))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", HINT) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no measurement: {shown(str(error))}", HINT) from None


def pairs_of(name: str, content: dict[str, Any]) -> Iterator[Pair]:
    """The counters that both sides of each stage know."""
    from .charts.parity import Pair

    for stage in content["memory"]["by_stage"]:
        estimated, measured = stage["estimated"], stage["measured"]
        for key in COUNTERS:
            if estimated.get(key) and measured.get(key):
                what = key.removeprefix("peak_").removesuffix("_bytes")
                yield Pair(f"{name}, {what}", int(estimated[key]), int(measured[key]))


def step_of(content: dict[str, Any]) -> MeasuredStep | None:
    """The file's timeline; None in a file from before there was one."""
    timeline = content.get("timeline")
    if timeline is None:
        return None
    marks = tuple((int(start), str(name)) for start, name in timeline["marks"])
    points = tuple((int(event), int(nbytes)) for event, nbytes in timeline["points"])
    if "forward" not in [name for _, name in marks] or len(points) < 2:
        raise ValueError("its timeline has no forward pass")
    kind, version = "emulated" if content["emulated"] else "measured", content["software"]["torch"]
    return MeasuredStep(kind, version, int(timeline["events"]), marks, points)


def steps_of(run: Run, measurements: Sequence[Measurement]) -> tuple[MeasuredStep, ...]:
    """Those of exactly this run."""
    return tuple(
        found.step for found in measurements if found.step is not None and not found.differences(run)
    )


def not_drawn(measurements: Sequence[Measurement], runs: Sequence[Run]) -> Iterator[str]:
    """Why a file's step is in no timeline, one line each."""
    for found in measurements:
        if found.step is None:
            yield f"{found.path} has no timeline: it is only in the parity chart"
        elif all(found.differences(run) for run in runs):
            fewest = min((found.differences(run) for run in runs), key=len)
            more = f" and {len(fewest) - MOST_KEYS} more" if len(fewest) > MOST_KEYS else ""
            yield (f"{found.path} is of another run ({'; '.join(fewest[:MOST_KEYS])}{more}): it is only in "
                   "the parity chart")
