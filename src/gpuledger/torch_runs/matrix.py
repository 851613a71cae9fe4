"""A matrix of runs in one file, and its measurement: a file for each, and none is run twice."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.config.cluster import Gpu
from gpuledger.config.options import RunOptions
from gpuledger.config.presets import presets_folder
from gpuledger.config.reading import read_file
from gpuledger.config.resolve import resolve_run
from gpuledger.config.run import Run
from gpuledger.errors import InputError
from gpuledger.files import write_whole

from .child import Measurer
from .validate import LIMIT_SECONDS, Bench, on_bench, validate

GROUP_KEYS = {"name", "base", "set", "over"}
EXAMPLE = "see presets/matrices/validation.yaml"


@dataclass(frozen=True)
class Progress:
    """After each run: its number from 1, how many there are, its name and its result."""

    number: int
    total: int
    name: str
    result: Mapping[str, Any]
    from_file: bool


def matrix_file(name: str) -> Path:
    """A matrix of presets/matrices by name, or a path. Raises InputError if there is neither."""
    preset = presets_folder() / "matrices" / f"{name}.yaml"
    for path in (Path(name), preset):
        if path.is_file():
            return path
    known = ", ".join(sorted(p.stem for p in preset.parent.glob("*.yaml")))
    raise InputError(f"no matrix {name}", f"name a file, or one of: {known}")


def read_matrix(path: Path, gpu: Gpu) -> list[Run]:
    """All runs of a matrix on this GPU, in order, with names that tell them apart.

    bases: runs by name, without a cluster. groups: each has a name, a base, and may have `set`
    (values by dotted key) and `over` (lists of values by dotted key, of which every combination
    is run). Raises InputError for a file that is none, and for a run that is wrong.
    """
    keys = read_file(path)
    bases, groups = keys.get("bases"), keys.get("groups")
    if not isinstance(bases, dict) or not isinstance(groups, list) or not groups:
        raise InputError(f"{path} is no matrix: it needs bases and groups", EXAMPLE)
    runs = [run for group in groups for run in runs_of_group(group, bases, gpu)]
    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path}: two runs are called {twice[0]}", "name the groups apart")
    return runs


def runs_of_group(group: object, bases: Mapping[str, Any], gpu: Gpu) -> Iterator[Run]:
    """The combinations of `over`, the last key varying fastest."""
    if not isinstance(group, dict) or not {"name", "base"} <= set(group) <= GROUP_KEYS:
        raise InputError(
            f"a group of the matrix is {group!r}: it needs name and base, may have set and over",
            EXAMPLE)
    if group["base"] not in bases:
        raise InputError(f"group {group['name']}: there is no base {group['base']!r}",
                         f"one of: {', '.join(bases)}")
    over: dict[str, list[Any]] = group.get("over") or {}
    for values in itertools.product(*over.values()):
        keys = (group.get("set") or {}) | dict(zip(over, values, strict=True))
        name = "-".join([group["name"], *(short(value) for value in values)])
        yield resolved(name, bases[group["base"]], keys, gpu)


def resolved(name: str, base: Mapping[str, Any], keys: Mapping[str, Any], gpu: Gpu) -> Run:
    """One run; a data-parallel one counts its ranks as GPUs."""
    model = keys.get("model", base["model"])
    gpus = keys.get("parallel.dp", base.get("parallel", {}).get("dp", 1))
    source = {**copy.deepcopy(dict(base)), "name": name, "model": model,
              "cluster": {"gpu": gpu.model_dump(mode="json", exclude_none=True), "gpus": gpus,
                          "gpus_per_node": gpus}}
    options = RunOptions(
        set=tuple(f"{key}={json.dumps(value)}" for key, value in keys.items() if key != "model"))
    return resolve_run(source, options)[0]


def short(value: object) -> str:
    """A value in a file's name."""
    if isinstance(value, dict):
        return "-".join(f"{key}-{item}" for key, item in value.items())
    return str(value).lower().replace("_", "-")


def run_matrix(runs: list[Run], bench: Bench, folder: Path,
               report: Callable[[Progress], None]) -> list[dict[str, Any]]:
    """Measures what `folder` has no result of yet; each result is a file, written whole.

    Interrupt it at any time: the next call goes on behind the last file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    with Measurer(bench.environment, LIMIT_SECONDS) as measurer:
        for number, run in enumerate(runs, start=1):
            path = folder / f"{run.name}.json"
            result = finished(path, on_bench(run, bench))
            from_file = result is not None
            if result is None:
                result = validate(run, bench, measurer)
                write_whole(path, json.dumps(result, separators=(",", ":")))
            report(Progress(number, len(runs), run.name, result, from_file))
            results.append(result)
    return results


def finished(path: Path, run: Run) -> dict[str, Any] | None:
    """The result in this file, if it is one of exactly this run."""
    try:
        result: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return result if result.get("run") == json.loads(run.model_dump_json()) else None
