"""Scores the step time model on published steps and writes what came out.

python benchmarks/step_time/evaluate.py [--check]

Writes docs/accuracy_step_time.md, benchmarks/step_time/accuracy.json and
presets/efficiency/error_ranges.yaml. With --check it writes nothing and fails where a file would
change.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(HERE)]

from choices import (  # noqa: E402
    choice,
    cost_of_random_errors,
    doublings,
    shape_error,
)
from page import page  # noqa: E402
from predict import held_out_halves, predict  # noqa: E402
from rows import HOST_SECONDS, Row, published_rows  # noqa: E402
from scores import constant_mfu, score  # noqa: E402

from gpuledger.compute.step_time.curves import architecture_of, data  # noqa: E402
from gpuledger.compute.step_time.error_range import family_of  # noqa: E402
from gpuledger.config import load_gpu  # noqa: E402
from gpuledger.files import write_whole  # noqa: E402

RANDOM_ERRORS = (4, 5, 6, 7, 8.5)
"""Mean absolute errors, in percent, of which the cost of choosing is shown."""
SINGLE_NODE, MULTI_NODE = "vTrain single node", "vTrain multi node"
NO_RANGE = {
    SINGLE_NODE: "small models whose time is the host's, which is not known for that machine",
    "Narayanan Table 2 ZeRO-3": "a DeepSpeed of 2021 without prefetch",
    "Megatron-Core table H100 (mb assumed)": "its micro-batch is assumed",
}
"""Groups that no error range is taken from, and why."""


def evaluate() -> dict[str, Any]:
    """Every score as plain values."""
    rows = published_rows()
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    baseline = constant_mfu(rows)
    table = []
    for name, members in groups.items():
        measured = np.array([row.step_seconds for row in members])
        models = [(row.model, row.decoder.seq_len, row.gpu) for row in members]
        table.append(
            {
                "group": name,
                "citation": members[0].citation,
                "assumed": members[0].assumed,
                **asdict(score(predict(members), measured, models)),
                "baseline": asdict(score(baseline[name], measured)),
            }
        )
    return {
        "host_seconds": HOST_SECONDS,
        "groups": table,
        "host_time": host_time(groups[SINGLE_NODE]),
        "all_others": all_others(rows),
        "choices": choices(rows),
        "families": families(rows),
        "ampere_link_on_hopper": ampere_link_on_hopper(rows),
    }


def host_time(rows: list[Row]) -> dict[str, Any]:
    """The single-node rows with the host time of that machine, taken from the half that is not
    scored."""
    halves = []
    random_costs = []
    for host, predicted, rest in held_out_halves(rows):
        measured = np.array([row.step_seconds for row in rest])
        halves.append(
            {
                "host_seconds": host,
                **asdict(score(predicted, measured)),
                "choice": asdict(found) if (found := choice(predicted, rest)) else None,
            }
        )
        random_costs.append(
            [cost_of_random_errors(rest, size, draws=20) for size in RANDOM_ERRORS]
        )
    means = [half["mean_absolute"] for half in halves]
    host_seconds = float(np.median([half["host_seconds"] for half in halves]))
    everywhere = predict(rows, host_seconds)
    return {
        "halves": halves,
        "mean": float(np.mean(means)),
        "min": min(means),
        "max": max(means),
        "host_seconds": host_seconds,
        "random_errors": dict(
            zip(map(str, RANDOM_ERRORS), np.mean(random_costs, 0).tolist(), strict=True)
        ),
        "shape_errors": {
            f"2048, tp {tp}, micro-batch 2": shape_error(everywhere, rows, 2048, tp, 2)
            for tp in (2, 4)
        },
        "doublings": doublings(rows),
    }


def all_others(rows: list[Row]) -> dict[str, Any]:
    """All rows but vTrain's, the assumed ones and other schedules than 1F1B in one score."""
    kept = [
        row
        for row in rows
        if not row.assumed
        and not row.group.startswith("vTrain")
        and row.layout.schedule == "interleaved"
    ]
    return asdict(score(predict(kept), np.array([row.step_seconds for row in kept])))


def choices(rows: list[Row]) -> dict[str, Any]:
    """What choosing by prediction costs, where a source has several layouts of the same work."""
    sources: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        sources[row.source].append(row)
        if not row.group.startswith("vTrain"):
            sources["all but vTrain"].append(row)
    found = {name: choice(predict(members), members) for name, members in sources.items()}
    return {name: asdict(value) for name, value in found.items() if value is not None}


def ampere_link_on_hopper(rows: list[Row]) -> dict[str, float]:
    """Mean absolute error of each H100 source if its rings got an A100's share of the link."""
    share = data("architectures")["ampere"]["link_share"]
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if architecture_of(load_gpu(row.gpu)) == "hopper":
            changed = replace(row, device=replace(row.device, link_share=share))
            errors[row.group].append(100 * abs(float(predict([changed])[0]) / row.step_seconds - 1))
    return {group: float(np.mean(values)) for group, values in errors.items()}


def families(rows: list[Row]) -> dict[str, Any]:
    """The 5th and 95th percentile of the errors of each family, and which groups it is made of."""
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.group not in NO_RANGE:
            architecture = architecture_of(load_gpu(row.gpu))
            members[family_of(architecture, row.profile, row.precision)].append(row)
    result = {}
    for family, found in sorted(members.items()):
        errors = predict(found) / np.array([row.step_seconds for row in found]) - 1
        low, high = np.quantile(errors, [0.05, 0.95])
        result[family] = {
            "n": len(found),
            "bias": round(float(errors.mean()), 4),
            "low": round(float(low), 4),
            "high": round(float(high), 4),
            "groups": sorted({row.group for row in found}),
        }
    return result


def ranges_yaml(result: dict[str, Any]) -> str:
    lines = [
        "# Written by benchmarks/step_time/evaluate.py: predicted / measured seconds, minus 1, on",
        "# published steps of a family: mean, 5th and 95th percentile. Negative reads too fast.",
        "families:",
    ]
    for family, values in result["families"].items():
        numbers = ", ".join(f"{key}: {values[key]}" for key in ("n", "bias", "low", "high"))
        lines.append(f'  "{family}": {{{numbers}}}')
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    result = evaluate()
    files = {
        ROOT / "docs" / "accuracy_step_time.md": page(result, NO_RANGE),
        HERE / "accuracy.json": json.dumps(result, indent=1) + "\n",
        ROOT / "presets" / "efficiency" / "error_ranges.yaml": ranges_yaml(result),
    }
    if "--check" in arguments:
        stale = [
            path.name
            for path, text in files.items()
            if not path.is_file() or path.read_text() != text
        ]
        print(f"stale: {', '.join(stale)}" if stale else "up to date")
        return 1 if stale else 0
    for path, text in files.items():
        write_whole(path, text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
