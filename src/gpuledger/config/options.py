"""`RunOptions`: what a command line says beside the run's name, laid over the run's keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, Problem
from .cluster import Cluster
from .model import Model, bias_by_projection
from .parallelism import Parallelism
from .problems import shown, suggestion
from .reading import Values, read_yaml
from .record import Record
from .training import Training

PARTS: dict[str, type[Record]] = {
    "model": Model,
    "training": Training,
    "parallel": Parallelism,
    "cluster": Cluster,
}

SHORT_OPTIONS = {
    "gpu": "cluster.gpu",
    "gpus": "cluster.gpus",
    "zero": "parallel.zero_stage",
    "precision": "training.precision",
    "seq_len": "training.seq_len",
    "micro_batch": "training.micro_batch_size",
    "global_batch": "training.global_batch_size",
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "recompute": "training.recompute",
}


@dataclass(frozen=True)
class RunOptions:
    """The short options of the command line, and `set` for all other keys. None changes nothing."""

    gpu: str | None = None
    gpus: int | None = None
    zero: int | None = None
    precision: str | None = None
    seq_len: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    tp: int | None = None
    pp: int | None = None
    recompute: str | None = None
    set: tuple[str, ...] = ()

    def assignments(self, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
        """(dotted key, value) in order of application. What is no assignment goes to `problems`."""
        for option, path in SHORT_OPTIONS.items():
            value = getattr(self, option)
            if value is not None:
                yield path, recompute_value(value) if option == "recompute" else value
        for text in self.set:
            try:
                yield parse_assignment(text)
            except InputError as error:
                problems += error.problems


def recompute_value(text: str) -> object:
    """`every:2` (or every-2, every=2) as the mapping of a run file; other words as they are."""
    word, _, count = text.replace("=", ":").replace("-", ":").partition(":")
    return (
        {"every": int(count)} if word == "every" and count.isascii() and count.isdecimal() else text
    )


def parse_assignment(text: str) -> tuple[str, Any]:
    """The dotted key and the value of `key=value`. Raises InputError for anything else."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(
            f"--set {shown(text)} is not key=value", "for example --set training.loss=chunked"
        )
    path = full_key(key.strip())
    parsed = read_yaml(value, f"--set {key.strip()[:60]}")
    return path, recompute_value(parsed) if path == "training.recompute" and isinstance(
        parsed, str
    ) else parsed


def full_key(key: str) -> str:
    """The dotted key of a run that a short one means: `loss` is training.loss."""
    first = key.partition(".")[0]
    if first in PARTS or key == "name":
        return key
    for part, record in PARTS.items():
        if first in record.model_fields and first not in ("name", "source"):
            return f"{part}.{key}"
    known = [field for record in PARTS.values() for field in record.model_fields]
    raise InputError(
        f"--set {shown(key)[1:-1]}: no such key", suggestion(first, [*PARTS, *known], "keys")
    )


def assign(keys: Values, path: str, value: Any) -> None:
    """Put a value at a dotted key. What is not a mapping on the way there becomes one."""
    *parents, last = path.split(".")
    for parent in parents:
        inner = keys.get(parent)
        if isinstance(inner, bool) and parent == "bias":
            inner = bias_by_projection(inner, norm=keys.get("norm", ""))
        keys[parent] = dict(inner) if isinstance(inner, dict) else {}
        keys = keys[parent]
    keys[last] = value
