"""MFU and HFU: published utilizations, the command's output, and what it refuses."""
from __future__ import annotations

import json
from typing import Any

import pytest

import published_models as published
from gpuledger.cli.mfu import mfu, mfu_table
from gpuledger.compute.convention_formulas import CONVENTIONS
from gpuledger.compute.mfu import Measured, MfuReport, Utilization, dense_peak, mfu_report
from gpuledger.config.cluster import Cluster, DensePeaks, Gpu
from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.run import Run
from gpuledger.config.training import EveryK, Training
from gpuledger.errors import InputError


def gpu(**peaks: float) -> Gpu:
    return Gpu(name="test-gpu", full_name="Test GPU", vendor="nvidia", memory_bytes=80 * 2**30,
               dense_peak_flops_per_second=DensePeaks(**peaks), sources={})


A100 = gpu(bf16=312e12, fp16=312e12, tf32=156e12, fp32=19.5e12)
H200 = gpu(bf16=989e12)


def run_of(model: Model, device: Gpu, *, seq_len: int, global_batch_size: int,
           parallel: Parallelism | None = None, **training: Any) -> Run:
    parallel = parallel or Parallelism()
    fields: dict[str, Any] = {
        "micro_batch_size": 1, "precision": "bf16-mixed", "optimizer": "adamw",
        "attention": "flash", "recompute": "none", "loss": "cross_entropy", **training}
    return Run(
        model=model, parallel=parallel, cluster=Cluster(gpu=device, gpus=parallel.world_size),
        training=Training(seq_len=seq_len, global_batch_size=global_batch_size, **fields))


def kempner(**training: Any) -> Run:
    """KempnerForge, mfu_scaling 2026-04-05, row 1: Llama-3-8B on one H200, 2 x 4 x 4,096 tokens."""
    return run_of(published.LLAMA3_8B, H200, seq_len=4096, global_batch_size=8, micro_batch_size=4,
                  **training)


def row(report: MfuReport, convention: str) -> Utilization:
    [found] = [row for row in report.rows if row.convention == convention]
    return found


# ---- published utilizations --------------------------------------------------------------------


def test_kempnerforge_prints_57_8_percent_where_megatron_counts_51_1() -> None:
    report = mfu_report(kempner(), Measured(tokens_per_second=10_471))
    assert round(100 * row(report, "palm").mfu, 1) == 57.8
    assert round(100 * row(report, "palm").mfu, 2) == 57.83
    assert round(100 * row(report, "megatron").mfu, 1) == 51.1
    assert report.warnings == ()


KORTHIKANTI = [
    # layers, hidden, heads, pipeline stages of 8 GPUs, batch, seconds, MFU, HFU: 2205.05198 tables
    # 3 and 5, sequence parallelism and selective recompute, 2,048 tokens, vocabulary 51,200, A100
    (48, 6144, 64, 1, 4, 1.10, 41.5, 43.7),
    (96, 12288, 96, 8, 64, 13.75, 51.4, 52.8),
    (105, 20480, 128, 35, 280, 37.83, 56.0, 57.0),
    (128, 25600, 160, 64, 512, 71.49, 56.3, 57.0),
]


@pytest.mark.parametrize("published_row", KORTHIKANTI)
def test_korthikanti_mfu_and_hfu(published_row: tuple[Any, ...]) -> None:
    L, h, a, stages, batch, seconds, mfu_pct, hfu_pct = published_row
    model = published.gpt2_like(num_layers=L, hidden_size=h, num_heads=a, vocab_size=51200,
                                max_position_embeddings=2048)
    run = run_of(model, A100, seq_len=2048, global_batch_size=batch,
                 parallel=Parallelism(tp=8, pp=stages, sequence_parallel=True),
                 precision="fp16-mixed", recompute="selective")
    # the step time is printed to 0.01 s, which moves the shortest one's MFU by 0.2 points
    slowest, fastest = (
        row(mfu_report(run, Measured(step_seconds=seconds + rounding)), "nanotron")
        for rounding in (0.005, -0.005))
    assert slowest.hfu_paper is not None and fastest.hfu_paper is not None
    assert round(100 * slowest.mfu, 1) <= mfu_pct <= round(100 * fastest.mfu, 1)
    assert round(100 * slowest.hfu_paper, 1) <= hfu_pct <= round(100 * fastest.hfu_paper, 1)
    # one more forward pass of the core, as it is run, explains a third of what was published
    assert 3 * (slowest.hfu - slowest.mfu) == pytest.approx(slowest.hfu_paper - slowest.mfu)


# ---- from a measurement to tokens per second and GPU -------------------------------------------


def test_three_ways_to_say_the_same() -> None:
    run = run_of(published.LLAMA3_8B, H200, seq_len=8192, global_batch_size=128,
                 parallel=Parallelism(dp=8))
    tokens = 128 * 8192
    reports = [mfu_report(run, measured) for measured in (
        Measured(step_seconds=16.0), Measured(tokens_per_second=tokens / 16),
        Measured(tokens_per_second_per_gpu=tokens / 16 / 8))]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0].tokens_per_second_per_gpu == 8192.0
    assert row(reports[0], "megatron").flops_per_second_per_gpu == 51_470_401_536 * 8192


@pytest.mark.parametrize("measured", [
    Measured(), Measured(tokens_per_second=1.0, step_seconds=1.0)])
def test_one_measurement_is_needed(measured: Measured) -> None:
    with pytest.raises(InputError, match="one is needed") as error:
        mfu_report(kempner(), measured)
    assert "step_seconds" in error.value.problems[0].hint


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_measurement_is_positive_and_finite(value: float) -> None:
    with pytest.raises(InputError, match="is not a measurement"):
        mfu_report(kempner(), Measured(tokens_per_second=value))


# ---- the peak ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "dtype", "peak"), [
    ("fp32", "fp32", 19.5e12), ("tf32", "tf32", 156e12), ("fp16-mixed", "fp16", 312e12),
    ("bf16-mixed", "bf16", 312e12), ("bf16", "bf16", 312e12), ("bf16-master", "bf16", 312e12)])
def test_the_peak_is_that_of_the_products_datatype(
        precision: Any, dtype: str, peak: float) -> None:
    assert dense_peak(A100, precision) == (dtype, peak)


def test_an_unknown_peak_is_refused_and_no_other_taken() -> None:
    v100 = gpu(fp16=125e12, fp32=15.7e12)
    run = run_of(published.GPT2, v100, seq_len=1024, global_batch_size=8)
    with pytest.raises(InputError, match="dense bf16 peak of test-gpu is not known") as error:
        mfu_report(run, Measured(step_seconds=1.0))
    assert "without sparsity" in error.value.problems[0].hint


# ---- recompute, order, warnings ----------------------------------------------------------------


def test_hfu_of_full_recompute() -> None:
    report = mfu_report(kempner(recompute="full"), Measured(tokens_per_second=10_471))
    megatron = row(report, "megatron")
    # blocks and cores a third more, the head as before
    head = 6 * 4096 * 128256
    share = (megatron.model_flops_per_token - head) / megatron.model_flops_per_token
    assert megatron.hfu == pytest.approx(megatron.mfu * (1 + share / 3), rel=1e-12)
    assert megatron.hfu_paper is None


def test_hfu_equals_mfu_without_recompute() -> None:
    report = mfu_report(kempner(), Measured(tokens_per_second=10_471))
    assert all(row.hfu == row.mfu for row in report.rows)


def test_the_chosen_convention_comes_first_and_all_are_there() -> None:
    report = mfu_report(kempner(), Measured(tokens_per_second=10_471), "llm.c")
    assert report.rows[0].convention == "llm_c"
    assert {row.convention for row in report.rows} == set(CONVENTIONS)
    assert len(report.rows) == len(CONVENTIONS)


def test_attention_share() -> None:
    run = run_of(published.LLAMA3_8B, H200, seq_len=131072, global_batch_size=1)
    report = mfu_report(run, Measured(tokens_per_second=1000))
    core = 6 * 32 * 4096 * 131072
    megatron = row(report, "megatron")
    assert megatron.attention_share == core / megatron.model_flops_per_token
    assert row(report, "six_n").attention_share == 0


def test_a_convention_above_100_percent_is_named() -> None:
    run = run_of(published.LLAMA3_8B, H200, seq_len=131072, global_batch_size=1)
    # 70 % by the exact count: 1.7 times that by the full square
    report = mfu_report(run, Measured(tokens_per_second=0.7 * 989e12 / 148.108e9))
    [warning] = report.warnings
    assert "above 100 %" in warning
    over = {row.convention for row in report.rows if row.mfu > 1}
    assert all(name in warning for name in over)
    assert "torchtitan" in over and "megatron" not in over


def test_an_impossible_throughput_is_said_to_be_wrong() -> None:
    report = mfu_report(kempner(), Measured(tokens_per_second=40_000))
    [warning] = report.warnings
    assert warning.startswith("MFU is 195.") and "even by the exact count" in warning


# ---- the command -------------------------------------------------------------------------------


def test_the_table_begins_with_the_throughput(capsys: pytest.CaptureFixture[str]) -> None:
    mfu(kempner(recompute="full"), Measured(tokens_per_second=10_471))
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[0].startswith("10,471.0 tokens/s/GPU")
    assert "recompute full, 1 GPU (test-gpu)" in lines[0]
    assert "MFU (dense bf16 989)" in lines[2]
    assert lines[4].split()[:6] == ["megatron", "48.249", "505.2", "51.1", "%", "67.0"]
    assert len(lines) == 4 + len(CONVENTIONS)
    assert output.err == ""


def test_a_warning_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    mfu(kempner(), Measured(tokens_per_second=40_000))
    output = capsys.readouterr()
    assert output.err.startswith("warning: MFU is 195.")
    assert "warning" not in output.out


def test_json_has_the_run_and_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    mfu(kempner(), Measured(tokens_per_second=10_471), as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema_version"] == 1
    assert answer["run"]["training"]["seq_len"] == 4096
    assert answer["tokens_per_second_per_gpu"] == 10_471
    assert answer["dense_peak_flops_per_second"] == 989e12
    first = answer["rows"][0]
    assert first["convention"] == "megatron"
    assert first["model_flops_per_token"] == 48_249_176_064
    assert first["mfu"] == 48_249_176_064 * 10_471 / 989e12
    assert answer["warnings"] == []


def test_the_published_rule_is_a_column_with_selective_only() -> None:
    selective = kempner(recompute="selective")
    every = kempner(recompute=EveryK(every=2))
    measured = Measured(tokens_per_second=10_471)
    assert "HFU (paper)" in mfu_table(selective, mfu_report(selective, measured))
    table = mfu_table(every, mfu_report(every, measured))
    assert "HFU (paper)" not in table and "recompute every 2" in table
