"""Measured steps over the timeline: real emulated runs' own JSON (tests/data/emulated_runs)."""
from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuledger.cli.main import status_of
from gpuledger.config import load_run
from gpuledger.report.indented import indented
from gpuledger.report.measured import Measurement, not_drawn, read_measurement, steps_of
from gpuledger.report.records import line_of
from gpuledger.report.step_trace import trace_step
from gpuledger.torch_runs.live_bytes import curve, marks

FOLDER = Path(__file__).parent / "data" / "emulated_runs"
sys.path.append(str(FOLDER))
from make import RUNS  # noqa: E402

MEASURED = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_every_emulated_level_is_the_estimates(name: str) -> None:
    """PyTorch frees a run of tensors in an order of its own; between two runs, bytes are equal."""
    found = MEASURED[name]["timeline"]
    trace = trace_step(load_run(MEASURED[name]["run"]))
    total = sum(np.asarray(levels) for levels in trace.category_bytes.values())
    begin = max(start for start, phase in found["marks"] if phase == "forward")
    assert found["events"] - begin == len(total)
    assert [start - begin for start, _ in found["marks"][-3:]] == [start for start, _ in trace.phases]
    assert found["peak_bytes"] == int(max(total))
    within = [(event - begin - 1, nbytes) for event, nbytes in found["points"] if event > begin]
    unequal = [i for i, nbytes in within if total[i] != nbytes]
    assert len(unequal) < 0.1 * len(within)
    assert all(total[i] < total[i - 1] for i in unequal)              # inside a run of frees


@pytest.mark.parametrize("name", RUNS)
def test_the_line_lies_on_the_estimates_and_is_named(name: str, tmp_path: Path) -> None:
    assert status_of(["report", *RUNS[name], "-o", str(tmp_path), "--measured",
                      str(FOLDER / f"{name}.json")]) == 0
    [svg] = tmp_path.glob("*-timeline.svg")
    root = ET.fromstring(svg.read_bytes())
    marks_of = {g.get("data-label"): g.get("data-bytes") for g in root.iter() if g.get("class") == "mark"}
    estimated = next(value for label, value in marks_of.items() if label and label.startswith("peak, "))
    measured = MEASURED[name]["memory"]["by_stage"][0]["measured"]["peak_requested_bytes"]
    assert marks_of["emulated peak"] == estimated == str(measured)
    texts = "".join(root.itertext())
    assert "emulated: equal to the byte" in texts and "dashed: emulated, PyTorch 2.14.1" in texts
    assert "estimated peak" in texts


def test_the_difference_is_in_the_title(tmp_path: Path) -> None:
    changed = json.loads(json.dumps(MEASURED["recomputed"])) | {"emulated": False}
    points = changed["timeline"]["points"]
    highest = max(range(len(points)), key=lambda i: points[i][1])
    points[highest][1] += 4_096
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(changed))
    assert status_of(["report", *RUNS["recomputed"], "-o", str(tmp_path), "--measured", str(file)]) == 0
    [svg] = tmp_path.glob("*-timeline.svg")
    assert "measured: 4,096 bytes more" in svg.read_text()


def test_phases_lie_over_phases_where_events_differ() -> None:
    """A stream with one event more in the backward pass: the forward pass stays where it was."""
    measurement = read_measurement(FOLDER / "pythia-70m.json")
    run = load_run(measurement.run)
    [step] = steps_of(run, [measurement])
    trace = trace_step(run)
    begin, (_, backward, update) = step.last_micro_batch
    exact = line_of(step, trace)
    assert exact.positions[0] == 0.0 and exact.positions[-1] < 1.0
    longer = type(step)(step.kind, step.torch, step.events + 1, (
        *step.marks[:-1], (step.marks[-1][0] + 1, "step")), tuple(
        (event + (event > begin + backward + 10), nbytes) for event, nbytes in step.points))
    shifted = line_of(longer, trace)
    events = len(trace.reserved_bytes)
    for a, b in zip(exact.positions, shifted.positions, strict=True):
        inside = backward <= a * events < update
        assert abs(a - b) * events < (1.001 if inside else 1e-6)


def test_a_file_of_another_run_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = [*RUNS["recomputed"], "--set", "seq_len=64"]
    assert status_of(["report", *other, "-o", str(tmp_path), "--measured",
                      str(FOLDER / "recomputed.json")]) == 0
    assert "is of another run (training.seq_len 64, measured 128): it is only in the parity chart" in (
        capsys.readouterr().err)
    [svg] = tmp_path.glob("*-timeline.svg")
    assert "emulated" not in svg.read_text()


def test_an_older_file_has_no_step() -> None:
    found = read_measurement(FOLDER / "recomputed.json")
    older = Measurement(found.path, found.run, found.pairs, None)
    [said] = not_drawn([older], [load_run(found.run)])
    assert said.endswith("recomputed.json has no timeline: it is only in the parity chart")


@pytest.mark.parametrize("timeline", [
    {"events": 5, "marks": [], "points": [[0, 1], [5, 2]]}, {"events": 5}, [],
    {"events": 5, "marks": [[0, "forward"]], "points": [["a", 1], [5, 2]]}])
def test_a_broken_timeline_is_refused_in_words(timeline: Any, tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(MEASURED["recomputed"] | {"timeline": timeline}))
    assert status_of(["report", *RUNS["recomputed"], "-o", str(tmp_path), "--measured", str(file)]) == 2
    assert "broken.json holds no measurement" in capsys.readouterr().err


# ---- the curve in a file
def test_a_curve_keeps_peak_ends_marks_and_every_columns_extremes() -> None:
    rng = np.random.default_rng(1)
    levels = [int(x) for x in np.cumsum(rng.integers(-1000, 1001, 50_000)) + 10**8]
    phases = [(0, "forward"), (9_000, "backward"), (20_000, "forward"), (31_000, "backward"), (44_000, "step")]
    found = curve(levels, phases)
    points = dict(found["points"])
    assert len(found["points"]) <= 2 * (600 + 300) + 2 + len(phases) + 1
    assert all(levels[event] == nbytes for event, nbytes in points.items())
    assert found["peak_bytes"] == max(levels) == points[found["peak_event"]]
    assert found["events"] == len(levels) - 1 and {0, len(levels) - 1} <= set(points)
    assert {start for start, _ in phases} <= set(points)
    edges = [20_000 + (len(levels) - 20_000) * i // 600 for i in range(601)]
    for a, b in pairwise(edges):
        kept = [nbytes for event, nbytes in points.items() if a <= event < b]
        assert min(kept) == min(levels[a:b]) and max(kept) == max(levels[a:b])


def test_a_short_curve_keeps_every_point() -> None:
    levels = [5, 9, 7, 12, 3]
    found = curve(levels, [(0, "forward"), (2, "backward"), (3, "step")])
    assert found["points"] == [[i, nbytes] for i, nbytes in enumerate(levels)]


def test_phases_are_what_ends_at_the_boundaries() -> None:
    seen = [("forward", 4), ("backward", 9), ("forward", 13), ("backward", 18), ("optimizer", 25), ("zero grad", 30)]
    assert list(marks(seen)) == [(0, "forward"), (4, "backward"), (9, "forward"), (13, "backward"), (18, "step")]


def test_pairs_stand_on_one_line_and_mean_the_same() -> None:
    content = {"a": [[1, 2], [3, "step"]], "b": ["[\n 1,\n 2\n]", [1, 2, 3], [1.5, 2]], "c": []}
    text = indented(content)
    assert json.loads(text) == content
    assert "[1, 2]" in text and '[3, "step"]' in text
