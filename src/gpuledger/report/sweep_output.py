"""A sweep as table, CSV and JSON. Bytes are integers; cells that were not reached are left out."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from ..sweep import Cell, Sweep
from ..units import gib_cell

SCHEMA_VERSION = 1
MAX_ROWS = 200  # of a printed table
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")


def cell_values(cell: Cell) -> dict[str, Any]:
    """What is known of a cell beside its settings, as plain values; None where it is refused."""
    m = cell.memory
    names = (
        "peak_requested_bytes",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "device_used_bytes",
        "capacity_bytes",
        "headroom_bytes",
        "peak_instant",
    )
    values: dict[str, Any] = {"status": cell.status, "reason": cell.reason}
    values |= {name: None if m is None else getattr(m, name) for name in names}
    values |= {
        f"{name}_bytes": None if m is None else m.category_bytes[name] for name in CATEGORIES
    }
    return values | {
        "model_flops_per_step": cell.model_flops_per_step,
        "hardware_flops_per_step": cell.hardware_flops_per_step,
    }


def sweep_json(sweep: Sweep) -> str:
    """Axes, whether the allocator was replayed, and all finished cells."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "over": {axis.key: list(axis.values) for axis in sweep.axes},
        "replayed": sweep.replayed,
        "num_cells": len(sweep.cells),
        "cells": [
            {"settings": cell.settings, **cell_values(cell)}
            for cell in sweep.cells
            if cell is not None
        ],
    }
    return json.dumps(content, indent=1)


def sweep_csv(sweep: Sweep) -> str:
    """One line per finished cell; empty fields are not known."""
    text = io.StringIO()
    rows = [
        {**{key: value_text(v) for key, v in cell.settings.items()}, **cell_values(cell)}
        for cell in sweep.cells
        if cell is not None
    ]
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def sweep_table(sweep: Sweep) -> str:
    """One row per cell, up to MAX_ROWS, and below it how many fit."""
    from tabulate import tabulate

    finished = [cell for cell in sweep.cells if cell is not None]
    rows = [_row(cell) for cell in finished[:MAX_ROWS]]
    headers = [*(axis.name for axis in sweep.axes), "fits", "peak GiB", "left GiB", "why not"]
    table = tabulate(
        rows,
        headers,
        disable_numparse=True,
        colalign=(*["right"] * len(sweep.axes), "left", "right", "right", "left"),
    )
    more = len(finished) - len(rows)
    lines = [
        table,
        *([f"... {more:,} more: --csv FILE or --json has all"] if more else []),
        "",
        counts(sweep),
    ]
    return "\n".join(lines)


def _row(cell: Cell) -> list[str]:
    settings = [value_text(value) for value in cell.settings.values()]
    if cell.memory is None:
        return [*settings, "refused", "", "", cell.reason]
    return [
        *settings,
        "yes" if cell.memory.fits else "no",
        gib_cell(cell.memory.device_used_bytes),
        gib_cell(cell.memory.headroom_bytes),
        cell.reason,
    ]


def counts(sweep: Sweep) -> str:
    """How many cells fit, and what `peak` counts."""
    states = [cell.status for cell in sweep.cells if cell is not None]
    words = [f"{states.count('fits'):,} fit", f"{states.count('does not fit'):,} do not"]
    if "refused" in states:
        words.append(f"{states.count('refused'):,} refused")
    if sweep.finished < len(sweep.cells):
        words.append(f"{len(sweep.cells) - sweep.finished:,} not reached")
    peak = (
        "peak: reserved by PyTorch's allocator"
        if sweep.replayed
        else "peak: allocated; what the allocator caches beyond it needs --replay"
    )
    return f"{len(sweep.cells):,} cells: {', '.join(words)} ({peak})"


def value_text(value: Any) -> str:
    """A setting in one word: every:2 for {every: 2}."""
    if isinstance(value, dict):
        return ",".join(f"{key}:{inner}" for key, inner in value.items())
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
