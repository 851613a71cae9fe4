"""Published peaks and outcomes of real runs: the stored results are what the engine says now."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuledger.config import Run
from gpuledger.errors import GpuledgerError

FOLDER = Path(__file__).parents[1] / "benchmarks" / "memory"
TARGETS = {"torchtitan, FSDP2": 5.0}            # mean absolute error, percent of reserved bytes


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """benchmarks/memory/published.py and outcomes.py."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("published"), importlib.import_module("outcomes")
    for name in ("published", "outcomes"):
        sys.modules.pop(name)


def stored(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def test_published_peaks(scripts: tuple[ModuleType, ModuleType]) -> None:
    """Every scored row again, and the targets."""
    published, _ = scripts
    done, left = published.scored()
    result = stored("published.json")
    told = {row["id"]: row["predicted_bytes"] for row in result["rows"]}
    assert {row["id"] for row in done} == set(told)
    for row in done:
        assert row["predicted_bytes"] == pytest.approx(told[row["id"]], rel=0.002), "run published.py"
    assert len(done) + len(left) == len(published.rows())
    assert all(row["reason"] for row in left)
    for group, most in TARGETS.items():
        assert result["groups"][group]["mean_absolute"] <= most


def test_no_run_that_ran_out_of_memory_fits_with_margin(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, outcomes = scripts
    verdicts = {}
    with outcomes.OUT_OF_MEMORY.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            run = outcomes.attempt(row, outcomes.of_outcome)
            if isinstance(run, Run):
                try:
                    verdicts[row["id"]] = outcomes.verdict(run, "")[0]
                except GpuledgerError:
                    continue
            else:
                assert run, f"{row['id']} has neither a run nor a reason"
    assert len(verdicts) >= 8
    assert "fits with margin" not in verdicts.values()
    assert verdicts == {row["id"]: row["verdict"] for row in stored("outcomes.json")["out_of_memory"]}, \
        "run benchmarks/memory/outcomes.py"
