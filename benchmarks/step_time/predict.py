"""Predicted seconds: row by row, or many rows of one machine as one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from rows import HOST_SECONDS, Row

from gpuledger.compute.step_time.inputs import Decoder, Layout
from gpuledger.compute.step_time.step import step_breakdown

DECODER = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn_hidden_size",
    "vocab_size",
    "seq_len",
)
LAYOUT = ("gpus", "global_batch_size", "micro_batch_size", "tp", "pp")
HOST_GRID = np.arange(5.0, 80.0, 0.5) * 1e-6


def predict(rows: Sequence[Row], host_seconds: float = HOST_SECONDS) -> np.ndarray:
    """Seconds of each row, with this host time unless its launches are asynchronous."""
    out = []
    for row in rows:
        host = host_seconds if row.software.host_seconds else 0.0
        program = replace(row.software, host_seconds=host)
        out.append(step_breakdown(row.decoder, row.layout, row.device, program).step_seconds)
    return np.array(out, float)


def predict_together(rows: Sequence[Row], host_seconds: float) -> np.ndarray:
    """The same for rows that differ in sizes and layout alone, as one array of each."""

    def column(part: str, name: str) -> np.ndarray:
        return np.array([getattr(getattr(row, part), name) for row in rows])

    decoder = replace(rows[0].decoder, **{name: column("decoder", name) for name in DECODER})
    layout = replace(rows[0].layout, **{name: column("layout", name) for name in LAYOUT})
    assert isinstance(decoder, Decoder) and isinstance(layout, Layout)
    program = replace(rows[0].software, host_seconds=host_seconds)
    return np.asarray(step_breakdown(decoder, layout, rows[0].device, program).step_seconds)


def held_out_halves(
    rows: Sequence[Row], count: int = 20
) -> Iterator[tuple[float, np.ndarray, list[Row]]]:
    """(host time that fits one half best, predictions of the other half, its rows), `count` times.

    Halves are drawn over layer shapes and layouts, so that no shape is on both sides. The host time
    is the only thing taken from a half: the smallest mean absolute error over a grid of half
    microseconds.
    """
    measured = np.array([row.step_seconds for row in rows])
    table = np.stack([predict_together(rows, host) for host in HOST_GRID])
    shapes = [
        (
            r.decoder.hidden_size,
            r.decoder.num_layers,
            r.layout.tp,
            r.layout.pp,
            r.layout.micro_batch_size,
        )
        for r in rows
    ]
    for seed in range(count):
        draw = np.random.default_rng(seed)
        taken = {shape for shape in sorted(set(shapes)) if draw.random() < 0.5}
        train = np.array([shape in taken for shape in shapes])
        errors = np.abs(table[:, train] / measured[train] - 1).mean(1)
        best = int(np.argmin(errors))
        rest = [row for row, used in zip(rows, train, strict=True) if not used]
        yield float(HOST_GRID[best]), table[best, ~train], rest
