"""Reconciliation without PyTorch: rows of a report, and what a matrix file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuledger.config import load_run
from gpuledger.config.load import load_gpu
from gpuledger.config.run import Run
from gpuledger.errors import InputError
from gpuledger.memory.instants import account_of_run
from gpuledger.report.reconciliation_json import reconciliation_content
from gpuledger.report.reconciliation_table import rows_table
from gpuledger.torch_runs.matrix import finished, matrix_file, read_matrix
from gpuledger.torch_runs.reconcile import measured_device, reconcile

TRAINING = {
    "seq_len": 64, "micro_batch_size": 2, "global_batch_size": 4, "precision": "bf16-mixed",
    "optimizer": "adamw", "attention": "flash", "recompute": "none", "loss": "cross_entropy"}
DEVICE = {"capability": "9.0", "num_sms": 132, "outside_bytes": 0}


def run_of(**training: Any) -> Run:
    return load_run({"model": "gpt2", "training": TRAINING | training,
                     "cluster": {"gpu": "h100-80gb-sxm", "gpus": 1}})


def perfect_report(run: Run) -> dict[str, Any]:
    """What a meter would write if PyTorch did exactly what is estimated."""
    account = account_of_run(run, measured_device({"device": DEVICE}))
    bridge = account.bridge
    owners = {"activations": 0, "temporaries": 0, "constants": 0, "workspaces": 0}
    instants = [
        {"instant": i.phase, "rounding_bytes": bridge.rounding_bytes, "allocated_bytes": None,
         "owned_bytes": owners | i.category_bytes | {
             "buffers": 0, "workspaces": i.category_bytes["buffers"]}}
        for i in (*account.boundaries, account.peak)]
    peak = {"requested_bytes": bridge.requested_bytes, "allocated_bytes": bridge.allocated_bytes,
            "reserved_bytes": bridge.reserved_bytes}
    return {"account": {"boundaries": instants[:-1], "peak": instants[-1]}, "device": DEVICE,
            "counters": [{"step": 1, "instant": "forward", "peak": peak | {"allocated_bytes": 1}},
                         {"step": 2, "instant": "forward", "peak": peak}]}


def test_a_measurement_like_the_estimate_is_exact() -> None:
    run = run_of()
    result = reconcile(run, perfect_report(run))
    assert result.exact
    assert result.unexplained_bytes == 0
    names = list(dict.fromkeys(row.instant for row in result.rows))
    assert names == [
        "end of forward 1", "end of backward 1", "end of forward 2", "end of backward 2",
        "end of optimizer", "end of zero grad", "peak, in optimizer", "peaks"]
    assert "every row agrees to the byte" in rows_table(reconciliation_content(result))


def test_one_wrong_owner_is_one_row_and_what_is_outside_is_unexplained() -> None:
    run = run_of()
    report = perfect_report(run)
    report["account"]["boundaries"][0]["owned_bytes"]["activations"] += 4096
    report["account"]["boundaries"][0]["owned_bytes"]["gradients"] -= 4096
    report["device"] = DEVICE | {"outside_bytes": 500_000_000}
    result = reconcile(run, report)
    differing = {row.item: row.difference_bytes for row in result.rows if row.difference_bytes}
    assert differing == {"gradients": -4096, "activations": 4096, "device used": 500_000_000}
    assert result.unexplained_bytes == 500_000_000
    table = rows_table(reconciliation_content(result))
    assert "+4,096" in table
    assert "unexplained: +500,000,000 B" in table


def test_the_terms_of_a_stage_add_up_to_its_allocated_peak() -> None:
    run = run_of(recompute="full", loss="chunked", optimizer_implementation="fused")
    stages = reconciliation_content(reconcile(run, perfect_report(run)))["by_stage"][0]
    for side in ("estimated", "measured"):
        terms = ("parameters", "gradients", "optimizer", "activations", "buffers")
        total = sum(stages[side][f"{term}_bytes"] for term in terms)
        assert total == stages[side]["peak_allocated_bytes"]
    assert stages["estimated"] == stages["measured"]


def test_the_validation_matrix_has_at_least_60_runs_with_names_of_their_own() -> None:
    runs = read_matrix(matrix_file("validation"), load_gpu("h200-141gb-sxm"))
    assert len(runs) >= 60
    assert len({run.name for run in runs}) == len(runs)
    varied = {name: {str(getattr(run.training, name)) for run in runs}
              for name in ("precision", "optimizer", "attention", "loss")}
    assert {name: len(values) for name, values in varied.items()} == {
        "precision": 6, "optimizer": 7, "attention": 5, "loss": 4}
    assert {run.parallel.zero_stage for run in runs} == {0, 1, 2, 3}


@pytest.mark.parametrize("text, words", [
    ("bases: {}\n", "needs bases and groups"),
    ("bases: {a: {model: gpt2}}\ngroups: [{name: x}]\n", "needs name and base"),
    ("bases: {a: {model: gpt2}}\ngroups: [{name: x, base: b}]\n", "no base 'b'"),
    ("bases: {a: {model: gpt9}}\ngroups: [{name: x, base: a}]\n", "gpt9"),
    (f"bases: {{a: {{model: gpt2, training: {json.dumps(TRAINING)}}}}}\n"
     "groups: [{name: x, base: a}, {name: x, base: a}]\n", "called x"),
])
def test_a_wrong_matrix_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_matrix(matrix_file(str(path)), load_gpu("h100-80gb-sxm"))


def test_an_unknown_matrix_names_the_known_ones() -> None:
    with pytest.raises(InputError) as error:
        matrix_file("validating")
    assert "validation" in error.value.problems[0].hint


def test_a_result_counts_as_finished_only_if_it_is_whole_and_of_this_run(tmp_path: Path) -> None:
    run, other = run_of(), run_of(recompute="full")
    path = tmp_path / "result.json"
    assert finished(path, run) is None
    path.write_text(json.dumps({"run": run.model_dump(mode="json"), "outcome": "ok"}))
    assert finished(path, run) is not None
    assert finished(path, other) is None
    path.write_text(path.read_text()[:-10])
    assert finished(path, run) is None
