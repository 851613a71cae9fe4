"""`resolve_run`: from a name and a few options to a `Run` with nothing left open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ..errors import GpuledgerError, InputError, Problem
from .assumptions import complete_cluster, complete_parallel, complete_training
from .model import Model
from .options import PARTS, RunOptions, assign
from .problems import MAX_PROBLEMS, all_of, shown, suggestion, validated
from .reading import Values
from .record import Record
from .run import Run
from .sources import Source, cluster_keys, model_keys, run_keys

TOP_LEVEL = ("name", *PARTS)
Expansion = Callable[[Source, Path | None], Values]


def load_run(source: Source) -> Run:
    """The run of a preset's name, a file or its keys. Raises InputError with all problems."""
    return resolve_run(source)[0]


def resolve_run(source: Source, options: RunOptions | None = None) -> tuple[Run, tuple[str, ...]]:
    """The run, and one line for each thing that nobody said and that was assumed.

    `source` is a run file (YAML or JSON), a run preset, a model preset, a model file or a Hugging
    Face config.json. Raises InputError with all problems; the GPU and the number of GPUs are never
    assumed.
    """
    draft = _Draft(*run_keys(source))
    draft.apply((options or RunOptions()).assignments(draft.problems))
    return draft.complete(model_keys, cluster_keys), tuple(draft.assumptions)


def resolve_each(
    source: Source, options: RunOptions, changes: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[Run, tuple[str, ...]] | InputError]:
    """For each mapping of dotted keys to values, what `resolve_run` gives with these keys set after
    `options`, or the error that it raises.

    Files and presets are read once. Raises InputError where the source itself cannot be read.
    """
    keys, folder = run_keys(source)
    problems: list[Problem] = []
    given = list(options.assignments(problems))
    models, clusters = _remembered(model_keys), _remembered(cluster_keys)
    known: dict[str, Record] = {}
    for change in changes:
        draft = _Draft(deepcopy(keys), folder, known)
        draft.problems += problems
        draft.apply([*given, *change.items()])
        try:
            run = draft.complete(models, clusters)
            yield run, tuple(draft.assumptions)
        except InputError as error:
            yield error


def _remembered(expansion: Expansion) -> Expansion:
    """The same expansion, which reads each preset or file once."""
    known: dict[str, Values] = {}

    def expand(source: Source, folder: Path | None) -> Values:
        key = repr(source)
        if key not in known:
            known[key] = expansion(source, folder)
        return dict(known[key])

    return expand


class _Draft:
    """The keys of a run while they are completed; every problem is kept until all are known."""

    def __init__(self, keys: Values, folder: Path | None, known: dict[str, Record] | None = None):
        self.keys, self.folder = keys, folder
        self.known = known  # records of keys that were validated before
        self.problems: list[Problem] = []
        self.assumptions: list[str] = []
        self.broken: set[str] = set()

    def part(self, name: str) -> Values:
        """The keys of a part, which exist from now on."""
        if self.keys.get(name) is None:
            self.keys[name] = {}
        part = self.keys[name]
        return part if isinstance(part, dict) else {}

    def apply(self, assignments: Iterable[tuple[str, Any]]) -> None:
        """Lay dotted keys and their values over the keys, in order."""
        given = set()
        for path, value in assignments:
            self._assign(path, value)
            given.add(path)
        parallel = self.part("parallel")
        moved = given & {"cluster.gpus", "parallel.tp", "parallel.pp", "parallel.cp"}
        if moved and "parallel.dp" not in given and "dp" in parallel:
            parallel.pop("dp")  # the file's dp belongs to the file's mesh: derive it again

    def _assign(self, path: str, value: Any) -> None:
        first, _, rest = path.partition(".")
        if rest and first == "model":
            self.expand("model", model_keys)
        if rest.startswith("gpu.") or (
            rest and first == "cluster" and isinstance(self.keys.get(first), str)
        ):
            self.expand("cluster", cluster_keys)
        if rest and not isinstance(self.keys.get(first), (dict, type(None))):
            return  # not a mapping: validation says so
        assign(self.keys, path, value)

    def complete(self, models: Expansion, clusters: Expansion) -> Run:
        """Expand names, assume what nobody said, validate. Raises InputError with all problems."""
        self.expand("model", models)
        self.expand("cluster", clusters)
        model = self.record("model")
        complete_cluster(self.part("cluster"), self.assumptions)
        complete_parallel(
            self.part("parallel"), self.part("cluster"), self.problems, self.assumptions
        )
        complete_training(self.keys, model if isinstance(model, Model) else None, self.assumptions)
        return self.run(model)

    def expand(self, name: str, expansion: Expansion) -> None:
        """Replace a preset's name or a path by its keys; a part that has none is broken."""
        source = self.keys.get(name)
        if name in self.broken or not isinstance(source, (str, dict)):
            return
        try:
            self.keys[name] = expansion(source, self.folder)
        except GpuledgerError as error:
            self.problems += error.problems
            self.broken.add(name)
            self.keys[name] = {}

    def record(self, name: str) -> Record | None:
        """The record of a part, or None where it has problems."""
        if name in self.broken:
            return None
        if name == "model" and self.keys.get(name) is None:
            self.problems.append(
                Problem("model is missing", "name a model preset, a config.json or its fields")
            )
            return None
        try:
            return self._validated(name)
        except InputError as error:
            self.problems += error.problems
            return None

    def _validated(self, name: str) -> Record:
        if self.known is None:
            return validated(PARTS[name], self.keys[name], name)
        key = f"{name} {self.keys[name]!r}"
        if key not in self.known:
            self.known[key] = validated(PARTS[name], self.keys[name], name)
        return self.known[key]

    def run(self, model: Record | None) -> Run:
        """The run of all parts. Raises InputError with everything that was found."""
        unknown = [key for key in self.keys if key not in TOP_LEVEL]
        for key in unknown[: MAX_PROBLEMS + 1]:
            self.problems.append(
                Problem(
                    f"unknown key {shown(key)[1:-1]}", suggestion(key, TOP_LEVEL, "keys of a run")
                )
            )
        parts = {name: self.record(name) for name in PARTS if name != "model"}
        if self.problems:
            raise all_of(self.problems)
        name = self.keys.get("name", getattr(model, "name", "run"))
        return validated(Run, {"name": name, "model": model, **parts})
