"""Published steps: errors as they are today, which may only fall, and a page that is up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "step_time"
sys.path.insert(0, str(FOLDER))

import evaluate as evaluation  # noqa: E402
from predict import predict, predict_together  # noqa: E402
from rows import published_rows  # noqa: E402

TODAY = {
    "vTrain single node": 24.5,
    "vTrain multi node": 12.5,
    "llm-foundry H100-SXM >=128 GPUs": 22.5,
    "llm-foundry H100-SXM <128 GPUs": 19.9,
    "llm-foundry A100-SXM <128 GPUs": 13.6,
    "llm-foundry A100-SXM >=128 GPUs": 13.4,
    "Megatron-Bridge GB200 dense": 11.4,
    "Megatron-Bridge H100-SXM dense": 4.9,
    "Megatron-Bridge B200 dense": 14.8,
    "NeMo H100 FP8": 14.0,
    "Megatron-Core table H100 (mb assumed)": 17.6,
    "Narayanan Table 1": 4.4,
    "Korthikanti Table 5": 2.4,
    "Narayanan Table 2 ZeRO-3": 59.3,
    "Narayanan Table 2 PTD-P": 4.9,
    "torchtitan bf16 H100-SXM": 24.8,
    "torchtitan bf16 A100-SXM": 15.7,
    "BLOOM": 8.8,
    "InternEvo A100 7B": 12.2,
    "fms-fsdp A100-SXM": 6.8,
    "fms-fsdp H100-SXM": 23.5,
    "MaxText H100": 26.7,
    "nanotron H100": 23.5,
    "Zero Bubble ZB-2p": 7.2,
    "Zero Bubble ZB-1p": 5.0,
    "Zero Bubble 1F1B": 4.8,
    "FlashAttention GPT, 8 A100": 9.1,
}
"""Mean absolute errors in percent. Nothing may make them larger."""


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return evaluation.evaluate()


def test_errors_are_no_larger_than_today(result: dict[str, Any]) -> None:
    found = {row["group"]: row["mean_absolute"] for row in result["groups"]}
    assert {name: found[name] for name, limit in TODAY.items() if found[name] > limit} == {}


def test_with_its_host_time_vtrains_node_is_within_9_percent(result: dict[str, Any]) -> None:
    assert len(result["host_time"]["halves"]) == 20
    assert result["host_time"]["mean"] < 9
    assert 30e-6 < result["host_time"]["host_seconds"] < 45e-6


def test_page_json_and_ranges_are_up_to_date(result: dict[str, Any]) -> None:
    root = FOLDER.parents[1]
    page = (root / "docs" / "accuracy_step_time.md").read_text()
    assert page == evaluation.page(result, evaluation.NO_RANGE), (
        "run benchmarks/step_time/evaluate.py"
    )
    ranges = (root / "presets" / "efficiency" / "error_ranges.yaml").read_text()
    assert ranges == evaluation.ranges_yaml(result)


def test_every_row_is_measured_and_cited() -> None:
    rows = published_rows()
    assert len(rows) == 540 + 58 + 512
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.citation and row.step_seconds > 0 for row in rows)
    assert all(row.layout.num_microbatches >= 1 for row in rows)


def test_rows_as_one_array_are_the_rows_one_by_one() -> None:
    rows = [row for row in published_rows() if row.group == "vTrain single node"]
    np.testing.assert_allclose(predict_together(rows, 37e-6), predict(rows, 37e-6), rtol=1e-12)
