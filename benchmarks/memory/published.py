"""Published peaks of real runs against `estimate`: torchtitan's reserved, SimuMax's allocated bytes.

`python benchmarks/memory/published.py` writes published.json beside it and prints the summary. The
rows with their sources are in ../published/memory.csv; rows that cannot be expressed carry the reason.
"""
from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import mean
from typing import Any

from gpuledger.config import Run, RunOptions, load_run, resolve_run
from gpuledger.errors import GpuledgerError
from gpuledger.estimate import Estimate, estimate
from gpuledger.formats.megatron import run_keys_of
from gpuledger.memory.allocator import parse_alloc_conf

HERE = Path(__file__).parent
FILE = HERE.parent / "published" / "memory.csv"
RESULT = HERE / "published.json"
Row = dict[str, str]


def rows() -> list[Row]:
    """Every published row."""
    with FILE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_of(row: Row) -> Run:
    """The run of a row: a preset with settings, or the launch arguments of Megatron-LM.

    Raises GpuledgerError for what is not modelled.
    """
    if row["arguments"]:
        keys = run_keys_of(json.loads(row["arguments"]), int(row["gpus"]))
        cluster = {"gpu": row["gpu"], "gpus": int(row["gpus"])}
        return load_run({"name": row["id"], **keys, "cluster": cluster})
    options = RunOptions(gpu=row["gpu"], gpus=int(row["gpus"]), set=tuple(json.loads(row["settings"])))
    return resolve_run(row["preset"], options)[0]


def answer_of(row: Row) -> Estimate:
    """The replayed estimate, with the allocator's settings of the row. Raises GpuledgerError."""
    return estimate(run_of(row), replay=True, settings=parse_alloc_conf(row["alloc_conf"]))


def predicted_bytes(row: Row, answer: Estimate) -> int:
    """What the row's counter would have shown."""
    memory = answer.memory
    assert memory.peak_reserved_bytes is not None, "the answer was replayed"
    return memory.peak_reserved_bytes if row["counter"] == "reserved" else memory.peak_allocated_bytes


def scored() -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """(scored rows, rows that are left out with their reason)."""
    done, left = [], []
    for row in rows():
        try:
            if row["reason"]:
                raise GpuledgerError(row["reason"], "")
            predicted = predicted_bytes(row, answer_of(row))
        except GpuledgerError as error:
            left.append({"id": row["id"], "group": row["group"], "model": row["model"],
                         "configuration": row["configuration"], "reason": error.problems[0].message})
            continue
        measured = int(row["measured_bytes"])
        done.append({"id": row["id"], "group": row["group"], "model": row["model"],
                     "configuration": row["configuration"], "counter": row["counter"],
                     "source": row["source"], "measured_bytes": measured, "predicted_bytes": predicted,
                     "error_percent": round(100 * (predicted / measured - 1), 3)})
    return done, left


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """n, mean absolute error, signed bias, 95th percentile and largest error, in percent."""
    errors = sorted(abs(row["error_percent"]) for row in done)
    if not errors:
        return {"n": 0}
    return {"n": len(errors), "mean_absolute": round(mean(errors), 3),
            "bias": round(mean(row["error_percent"] for row in done), 3),
            "p95": errors[-(-95 * len(errors) // 100) - 1], "max": errors[-1]}


def main() -> None:
    done, left = scored()
    groups = {name: summary([row for row in done if row["group"] == name])
              for name in dict.fromkeys(row["group"] for row in rows())}
    RESULT.write_text(json.dumps({"groups": groups, "rows": done, "left_out": left}, indent=1) + "\n",
                      encoding="utf-8")
    for row in done:
        print(f"{row['error_percent']:+8.3f} %  {row['predicted_bytes'] / 2**30:7.2f} of "
              f"{row['measured_bytes'] / 2**30:7.2f} GiB {row['counter']:9} {row['id']}: {row['configuration']}")
    print(f"left out: {len(left)}")
    for name, figures in groups.items():
        print(name, json.dumps(figures))


if __name__ == "__main__":
    main()
