"""Steps, hours, energy, money, checkpoints and jobs of a request, by hand."""
from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from gpuledger.compute.step_time.error_range import ErrorRange
from gpuledger.compute.step_time.of_run import StepTime, step_time
from gpuledger.errors import InputError
from gpuledger.estimate import Estimate, estimate
from gpuledger.planner.requests import RequestOptions, Resources, Span, resources
from gpuledger.planner.requests.resources import daly_interval_seconds
from request_runs import files_of, run_of

RUN = run_of("fsdp2", zero_stage=3)          # 16 GPUs of 700 W, 256 x 4,096 = 2^20 tokens per step
ESTIMATE = estimate(RUN)


class TenSeconds(StepTime):
    """A step of 10 s."""

    step_seconds = 10.0


def ten_seconds(low: float | None = None, high: float | None = None) -> StepTime:
    real = step_time(RUN)
    error = ErrorRange("by hand", calibrated=low is None, n=0, low_seconds=low, high_seconds=high)
    return TenSeconds(real.breakdown, real.tokens_per_second_per_gpu, error, ())


def account(time: StepTime | None = None, run: Estimate = ESTIMATE, **options: Any) -> Resources:
    return resources(run, time or ten_seconds(), RequestOptions(**{"tokens": 360 * 2**20} | options))


def test_steps_see_at_least_the_tokens() -> None:
    assert [RUN.training.optimizer_steps(tokens) for tokens in (1, 2**20, 2**20 + 1)] == [1, 1, 2]


def test_hours_energy_and_cost_by_hand() -> None:
    """360 steps of 10 s are an hour on 16 GPUs: 16 GPU hours, 16 x 0.7 kW x 1.25 = 14 kWh."""
    needed = account(price_per_gpu_hour=2.5, pue=1.25)
    assert (needed.steps, needed.tokens) == (360, 377_487_360)
    assert needed.training_seconds == needed.seconds == Span(3600.0)
    assert needed.gpu_hours.expected == 16
    assert needed.energy_kwh.expected == pytest.approx(14)
    assert needed.cost.expected == 40


def test_the_boards_alone_without_a_pue() -> None:
    assert account().energy_kwh.expected == pytest.approx(11.2)


def test_unknown_power_is_unknown_energy() -> None:
    gpu = RUN.cluster.gpu.model_copy(update={"power_watts": None})
    run = RUN.model_copy(update={"cluster": RUN.cluster.model_copy(update={"gpu": gpu})})
    assert account(run=dataclasses.replace(ESTIMATE, run=run)).energy_kwh is None


def test_the_range_of_a_step_is_that_of_everything() -> None:
    needed = account(ten_seconds(9.0, 20.0), price_per_gpu_hour=2.0)
    assert needed.gpu_hours == Span(16.0, 14.4, 32.0)
    assert (needed.cost.low, needed.cost.high) == (28.8, 64.0)
    assert needed.seconds.planned == 7200
    assert Span(10.0, 5.0, 8.0).planned == 10        # a family that is read too slow


def test_checkpoints_of_adamw_by_hand() -> None:
    """fp32 weights and two states: 4 and 12 bytes per parameter (and a step count per tensor)."""
    needed = account(kept_checkpoints=5)
    assert needed.weights_bytes == 4 * ESTIMATE.parameters
    assert needed.checkpoint_bytes == ESTIMATE.checkpoint.full_bytes
    assert needed.checkpoint_bytes // ESTIMATE.parameters == 12
    assert needed.storage_bytes == 5 * needed.checkpoint_bytes


def test_daly_by_hand() -> None:
    """d = 50 s, M = 10,000 s: sqrt(10^6) (1 + 0.05 / 3 + 0.0025 / 9) - 50."""
    assert daly_interval_seconds(50, 10_000) == pytest.approx(1000 * (1 + 1 / 60 + 1 / 3600) - 50)
    assert daly_interval_seconds(50, 10_000) == pytest.approx(966.944, abs=1e-3)
    assert daly_interval_seconds(200, 100) == 100    # a write as long as two failures apart


def test_daly_loses_the_least_time() -> None:
    """Against the whole cost of Daly's model, M e^(R/M) (e^((tau + d)/M) - 1) / tau per second."""
    d, M = 120.0, 36_000.0

    def lost(tau: float) -> float:
        return M * (math.exp((tau + d) / M) - 1) / tau

    best = daly_interval_seconds(d, M)
    assert lost(best) < min(lost(best * 0.97), lost(best * 1.03))


def test_writing_and_repeating_cost_time() -> None:
    """A write of 30 s every 600 s is 5 %; a failure every 10 h repeats 315 s of 36,000: 0.875 %."""
    bandwidth = ESTIMATE.checkpoint.full_bytes / 30
    needed = account(checkpoint_interval_seconds=600.0, checkpoint_bytes_per_second=bandwidth)
    assert needed.seconds.expected == pytest.approx(3600 * 1.05)
    needed = account(checkpoint_interval_seconds=600.0, checkpoint_bytes_per_second=bandwidth,
                     mean_time_between_failures_hours=10.0)
    assert needed.seconds.expected == pytest.approx(3600 * 1.05875)
    assert needed.gpu_hours.expected == pytest.approx(16 * 1.05875)


def test_an_interval_is_whole_steps() -> None:
    assert account(checkpoint_interval_seconds=605.0).cadence.steps == 60
    assert account(ten_seconds(9, 20), checkpoint_interval_seconds=605.0).cadence.steps == 30
    assert account(checkpoint_interval_seconds=1.0).cadence.steps == 1
    assert account().cadence.steps is None


def test_jobs_of_a_chain_by_hand() -> None:
    """An hour and 300 s to stop fit into 1.1 h; jobs of 1,500 s work 1,200 s each, so three."""
    assert (account().jobs, account().job_seconds) == (1, 3900)
    assert account(wall_time_limit_hours=1.1).jobs == 1
    needed = account(wall_time_limit_hours=1500 / 3600)
    assert (needed.jobs, needed.job_seconds) == (3, 1500)
    assert account(ten_seconds(9, 20), wall_time_limit_hours=1500 / 3600).jobs == 6


def test_jobs_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match=r"1,201 jobs"):
        account(wall_time_limit_hours=1500 / 3600, tokens=360 * 2**20 * 400 + 2**20)
    with pytest.raises(InputError, match=r"every 1,300 s, but a job works for 1,200 s"):
        account(wall_time_limit_hours=1500 / 3600, checkpoint_interval_seconds=1300.0)


def test_the_page_begins_with_the_answer() -> None:
    page = files_of(RUN, tokens=10**10, price_per_gpu_hour=2.0, pue=1.3)["request.md"]
    needed = resources(ESTIMATE, step_time(RUN), RequestOptions(tokens=10**10, price_per_gpu_hour=2.0))
    title, sentence = page.split("\n\n")[:2]
    assert title == "# Llama 3 on H100"
    assert sentence.startswith(f"We ask for **{needed.gpu_hours.planned:,.0f} GPU hours** "
                               f"(USD {needed.cost.planned:,.0f}) on 16 NVIDIA H100 80GB HBM3 (2 nodes) to "
                               "train llama-3-8b (8.03 B parameters) on 10.00 B tokens in ")
    for heading in ("Resources", "Memory of a GPU", "What is assumed", "What is not known",
                    "What the script has to do"):
        assert f"\n## {heading}\n" in page
    headroom = ESTIMATE.memory.headroom_bytes / 2**30
    assert f"| headroom | {headroom:,.2f} | " in page
    assert "PUE 1.3" in page and "upper bound, source: github:stas00" in page


def test_a_page_of_a_run_that_does_not_fit_says_so_first() -> None:
    page = files_of(run_of("ddp", gpus=8, model="llama-3-70b"))["request.md"]
    assert page.split("\n\n")[1].startswith("**It does not fit**: ")


def test_the_memory_table_adds_up() -> None:
    page = files_of(RUN)["request.md"].split("## Memory of a GPU")[1].split("##")[0]
    rows = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| ")]
    cells = {name: values for name, *values in rows}
    parts = sum(float(cells[name][0]) for name in ("parameters", "gradients", "optimizer", "activations",
                                                   "buffers"))
    assert parts == pytest.approx(float(cells["allocated"][0]), abs=0.03)
    expected, low, high = map(float, cells["used, as far as known"])
    assert low <= expected <= high
    capacity = float(cells["capacity"][0])
    assert [capacity - used for used in (expected, high, low)] == pytest.approx(
        [float(cell) for cell in cells["headroom"]], abs=0.02)


@pytest.mark.parametrize(("capacity_gib", "told"), [
    (80, "It fits, also with the most"), (2, "It does not fit.")])
def test_the_verdict_is_that_of_the_estimate(capacity_gib: int, told: str) -> None:
    gpu = RUN.cluster.gpu.model_copy(update={"torch_visible_bytes": None,
                                             "memory_bytes": capacity_gib * 2**30})
    run = RUN.model_copy(update={"cluster": RUN.cluster.model_copy(update={"gpu": gpu})})
    assert told in files_of(run)["request.md"]
