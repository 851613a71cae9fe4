"""Errors of predicted seconds, and the baseline beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from rows import Row


@dataclass(frozen=True)
class Score:
    """Errors in percent of the measured seconds; negative bias reads too fast."""

    n: int
    mean_absolute: float
    bias: float
    p95: float
    max: float
    rank: float | None = None


def score(predicted: np.ndarray, measured: np.ndarray, groups: Sequence[Hashable] = ()) -> Score:
    """Errors of all rows, and the mean rank correlation inside groups of five or more."""
    errors = 100 * (predicted / measured - 1)
    absolute = np.abs(errors)
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    ranks = [spearman(predicted[i], measured[i]) for i in members.values() if len(i) >= 5]
    return Score(
        len(errors),
        float(absolute.mean()),
        float(errors.mean()),
        float(np.quantile(absolute, 0.95)),
        float(absolute.max()),
        float(np.mean(ranks)) if ranks else None,
    )


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of ranks; equal values share their mean rank."""

    def ranks(values: np.ndarray) -> np.ndarray:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    a, b = ranks(first), ranks(second)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def model_flops(row: Row) -> float:
    """Of one step and GPU: 6 per matrix element and token, and 12 L a d s for attention cores."""
    d = row.decoder
    matrices = d.num_layers * d.layer_weights + d.vocab_size * d.hidden_size
    attention = 12 * d.num_layers * d.num_heads * d.head_dim * d.seq_len
    tokens = row.layout.global_batch_size * d.seq_len
    return float(tokens * (6 * matrices + attention) / row.layout.gpus)


def constant_mfu(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """For each group the seconds at one MFU: the median of the medians of the other groups on such
    GPUs in such a datatype (of all other groups where there is none). It takes nothing from the
    rows it is scored on."""
    mfu = {
        row.id: model_flops(row)
        / row.step_seconds
        / row.device.products.dense_peak_flops_per_second
        for row in rows
    }
    by_group: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_group[row.group].append(row)
    seconds = {}
    for group, members in by_group.items():
        medians = {
            name: float(np.median([mfu[row.id] for row in found]))
            for name, found in by_group.items()
            if name != group
        }
        kin = [
            value for name, value in medians.items() if kind(by_group[name][0]) == kind(members[0])
        ]
        constant = float(np.median(kin or list(medians.values())))
        seconds[group] = np.array(
            [
                model_flops(row) / (constant * row.device.products.dense_peak_flops_per_second)
                for row in members
            ]
        )
    return seconds


def kind(row: Row) -> tuple[str, bool]:
    return row.gpu.split("-")[0], row.precision == "fp8"
