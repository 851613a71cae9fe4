"""`emulate RUN` and `validate` on the emulated GPU: comparisons, an OOM, a resumed matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Emulated

from gpuledger.cli.emulate import run_emulate
from gpuledger.cli.main import status_of
from gpuledger.cli.validate import bench_of, run_validate, run_validate_matrix
from gpuledger.config import load_run
from gpuledger.config.load import load_gpu
from gpuledger.config.run import Run
from gpuledger.errors import InputError

TRAINING = {
    "seq_len": 256, "micro_batch_size": 2, "global_batch_size": 2, "precision": "bf16-mixed",
    "optimizer": "adamw", "attention": "efficient", "recompute": "none", "loss": "cross_entropy"}
MATRIX = f"""
bases: {{small: {{model: gpt2, training: {json.dumps(TRAINING)}}}}}
groups:
  - name: precision
    base: small
    over: {{training.precision: [bf16, fp32]}}
  - name: recomputed
    base: small
    set: {{training.precision: bf16, training.attention: flash, training.recompute: full}}
    over: {{model: [smollm2-135m]}}
  - name: eager
    base: small
    set: {{training.attention: eager, training.loss: chunked, training.recompute: {{every: 2}},
          training.gradient_clipping: true}}
  - {{name: refused, base: small, set: {{training.attention: cudnn}}}}
"""


def run_of(gpu: str = "h100-80gb-sxm", model: str = "gpt2", **training: Any) -> Run:
    return load_run({"model": model, "training": TRAINING | training,
                     "cluster": {"gpu": gpu, "gpus": 1}})


def test_emulation_and_estimate_agree_to_the_byte(
    emulated: Emulated, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_emulate(run_of(global_batch_size=8), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "ok"
    assert [row for row in found["memory"]["rows"] if row["difference_bytes"]] == []
    stage = found["memory"]["by_stage"][0]
    assert stage["estimated"] == stage["measured"]
    assert stage["measured"]["peak_reserved_bytes"] > stage["measured"]["peak_allocated_bytes"]
    timeline = found["timeline"]
    assert timeline["peak_bytes"] == stage["measured"]["peak_requested_bytes"]
    assert [name for _, name in timeline["marks"]] == ["forward", "backward"] * 2 + ["step"]


def test_a_rank_of_ddp_has_the_boundaries_of_its_estimate(
    emulated: Emulated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its broadcast of the tables belongs to the forward pass."""
    run = load_run({"model": "pythia-70m", "training": TRAINING | {"global_batch_size": 16},
                    "parallel": {"framework": "ddp", "dp": 4}, "cluster": {"gpu": "h100-80gb-sxm", "gpus": 4}})
    assert run_emulate(run, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["timeline"]["peak_bytes"] == (
        found["memory"]["by_stage"][0]["estimated"]["peak_requested_bytes"])
    ends = [row for row in found["memory"]["rows"] if row["item"] == "requested" and "end" in row["instant"]]
    assert len(ends) == 6 and not any(row["difference_bytes"] for row in ends)


def test_out_of_memory_is_a_result(emulated: Emulated, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("rtx-3090-24gb", micro_batch_size=64, global_batch_size=64, seq_len=1024)
    assert run_emulate(run) == 0
    printed = capsys.readouterr().out
    assert "does not fit: out of memory after model created of step 0" in printed
    assert "every row agrees to the byte" in printed            # on the same GPU with room


def test_a_kernel_that_the_gpu_lacks_is_refused_in_words(emulated: Emulated) -> None:
    with pytest.raises(InputError, match="no efficient attention for bf16 on Tesla T4") as error:
        run_emulate(run_of("t4-16gb", precision="bf16"))
    assert error.value.problems[0].hint == "use attention: math or eager"


def test_the_snapshot_is_one_that_pytorch_can_read(emulated: Emulated, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    assert run_emulate(run_of(), snapshot=path) == 0
    counted = emulated.run(
        "import json, pickle, sys; s = pickle.load(open(sys.argv[1], 'rb'));"
        "print(json.dumps([len(s['segments']), len(s['device_traces'][0])]))", str(path))
    assert counted[0] > 10
    assert counted[1] > 1000


def test_a_validation_has_both_sides_and_the_counted_flops(
    emulated: Emulated, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = bench_of(load_gpu("h200-141gb-sxm"))
    assert run_validate(run_of(), bench, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["exact"]
    assert found["flops"]["total"] == found["flops"]["estimated_total"]
    assert found["device"]["name"] == "NVIDIA H200"
    assert found["run"]["cluster"]["gpu"]["name"] == "h200-141gb-sxm"
    assert found["emulated"]
    assert "time" not in found
    peak = found["memory"]["by_stage"][0]["measured"]["peak_requested_bytes"]
    assert found["timeline"]["peak_bytes"] == peak


def test_what_was_emulated_is_drawn_over_the_estimate(
    emulated: Emulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that does not fit is drawn too: as it would be with room for everything."""
    source, arguments = "gpt2", ["--gpu", "rtx-3090-24gb", "--gpus", "1", "--micro-batch", "64", "--set",
                                 "attention=efficient", "--precision", "fp16-mixed"]
    assert status_of(["emulate", source, *arguments, "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["outcome"] == "out of memory"
    file = tmp_path / "emulated.json"
    file.write_text(printed)
    assert status_of(["report", source, *arguments, "-o", str(tmp_path), "--measured", str(file)]) == 0
    assert "emulated: equal to the byte" in (tmp_path / "gpt2-timeline.svg").read_text()


def test_a_matrix_goes_on_behind_the_last_result(
    emulated: Emulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix, results = tmp_path / "matrix.yaml", tmp_path / "results"
    matrix.write_text(MATRIX)
    gpu = load_gpu("h100-80gb-sxm")

    def measure() -> tuple[dict[str, Any], list[str]]:
        assert run_validate_matrix(str(matrix), results, as_json=True, emulated_gpu=gpu) == 0
        printed = capsys.readouterr()
        return json.loads(printed.out), printed.err.splitlines()

    first, lines = measure()
    assert first["outcomes"] == {"ok": 4, "refused": 1}
    assert first["exact"] == 4
    assert "every row agrees" in lines[0]
    (results / "precision-fp32.json").write_text("{")            # killed while it was written
    second, lines = measure()
    assert second == first
    assert [line.endswith("kept") for line in lines] == [True, False, True, True, True]
