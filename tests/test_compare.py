"""Two runs side by side: what differs comes first, and the differences are the estimates'."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuledger.cli.main import status_of
from gpuledger.config import RunOptions, resolve_run
from gpuledger.estimate import estimate
from gpuledger.report.compare import Comparison, Figure, compare, comparison_table
from gpuledger.report.estimate_json import content
from gpuledger.report.markdown import comparison_markdown


def answer(**settings: Any) -> dict[str, Any]:
    run, _ = resolve_run("gpt2", RunOptions(gpu="h100-80gb-sxm", gpus=4, **settings))
    return content(estimate(run))


@pytest.fixture(scope="module")
def zero() -> Comparison:
    return compare(("A", answer(zero=0)), ("B", answer(zero=2, recompute="full")))


def test_settings_that_differ_and_no_others(zero: Comparison) -> None:
    assert [(s.key, s.first, s.second) for s in zero.settings] == [
        ("training.recompute", "none", "full"), ("parallel.zero_stage", 0, 2)]


def test_figures_are_the_estimates_and_differences_come_first(zero: Comparison) -> None:
    a, b = answer(zero=0)["memory"], answer(zero=2, recompute="full")["memory"]
    by_name = {figure.name: figure for figure in zero.figures}
    assert by_name["device used"].difference == b["device_used_bytes"] - a["device_used_bytes"]
    for name in ("parameters", "optimizer", "activations"):
        assert (by_name[name].first, by_name[name].second) == (
            a["by_stage"][0][f"{name}_bytes"], b["by_stage"][0][f"{name}_bytes"])
    for rows in (zero.figures, zero.entries):
        differs = [bool(row.difference) for row in rows]
        assert differs == sorted(differs, reverse=True) and any(differs) and not all(differs)
        for kind in ("bytes", "FLOPs"):
            sizes = [abs(row.difference or 0) for row in rows if row.kind == kind]
            assert sizes == sorted(sizes, reverse=True)


def test_entries_of_both_add_up_to_both_peaks(zero: Comparison) -> None:
    a, b = answer(zero=0)["memory"], answer(zero=2, recompute="full")["memory"]
    assert sum(row.first or 0 for row in zero.entries) == a["by_stage"][0]["peak_allocated_bytes"]
    assert sum(row.second or 0 for row in zero.entries) == b["by_stage"][0]["peak_allocated_bytes"]


def test_verdict(zero: Comparison) -> None:
    assert zero.verdict.startswith("B needs ") and "less than A; most of it is optimizer (-" in zero.verdict
    same = compare(("A", answer()), ("B", answer()))
    assert same.verdict == "A and B need the same memory"
    assert same.settings == () and not any(row.difference for row in same.figures)


@pytest.mark.parametrize(("first", "second", "text"), [
    (2**30, 3 * 2**30, "+2.00 GiB (+200.0 %)"), (4 * 2**30, 3 * 2**30, "-1.00 GiB (-25.0 %)"),
    (0, 2**30, "+1.00 GiB"), (5, 5, "="), (None, 5, "?")])
def test_difference_in_words(first: int | None, second: int, text: str) -> None:
    assert Figure("x", first, second).difference_text == text


def test_what_is_not_known_is_not_equal(zero: Comparison) -> None:
    reserved = next(figure for figure in zero.figures if figure.name == "peak reserved")
    assert reserved.first is None and reserved.difference_text == "?" and reserved.text(None) == "?"


def test_table_and_markdown_have_every_figure(zero: Comparison) -> None:
    for text in (comparison_table(zero), comparison_markdown(zero)):
        assert zero.verdict in text
        for figure in zero.figures:
            assert figure.name in text and figure.difference_text in text


def test_command_compares_two_runs_and_only_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", "pythia-70m", "--gpu", "h100", "--gpus", "2", "-o", str(tmp_path), "--compare"]
    assert status_of([*arguments, "--over", "zero=0,1,2"]) == 2
    assert "--compare is for two runs, but there are 3" in capsys.readouterr().err
    assert status_of([*arguments, "--over", "zero=0,3", "--md"]) == 0
    printed = capsys.readouterr().out
    assert "zero_stage 3 needs" in printed and "setting that differs" in printed
    assert "Settings that differ" in (tmp_path / "index.html").read_text()
    assert "setting that differs" in (tmp_path / "report.md").read_text()
