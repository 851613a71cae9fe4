"""Writes the generated tables of docs/run_file.md: python docs/update_run_file.py"""
from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "src")]

from gpuledger.config import Bias, Cluster, Gpu, Model, Parallelism, Record, Training  # noqa: E402
from gpuledger.config.frameworks import (  # noqa: E402
    DDPOptions,
    DeepSpeedOptions,
    FSDP1Options,
    FSDP2Options,
    OffloadOptions,
    ZeroRedundancyOptions,
)
from gpuledger.config.megatron import MegatronOptions  # noqa: E402
from gpuledger.config.options import SHORT_OPTIONS  # noqa: E402

RECORDS: dict[str, type[Record]] = {
    "model": Model, "bias": Bias, "training": Training, "parallel": Parallelism,
    "ddp": DDPOptions, "zero_redundancy": ZeroRedundancyOptions, "fsdp2": FSDP2Options,
    "fsdp1": FSDP1Options, "deepspeed": DeepSpeedOptions, "megatron": MegatronOptions, "offload": OffloadOptions,
    "cluster": Cluster, "gpu": Gpu}
NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false"}
SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def page() -> str:
    """The page with its tables made anew."""
    text = (DOCS / "run_file.md").read_text(encoding="utf-8")
    for name, record in RECORDS.items():
        text = replaced(text, name, "\n".join(field_rows(record)))
    return replaced(text, "options", "\n".join(option_rows()))


def replaced(text: str, name: str, table: str) -> str:
    """The page with this table between its comments `name:begin` and `name:end`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def field_rows(record: type[Record]) -> Iterator[str]:
    """A Markdown table of the keys of a record."""
    yield "| key | values | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in record.model_fields.items():
        yield f"| `{name}` | {values(field)} | {default(field)} | {field.description} |"


def option_rows() -> Iterator[str]:
    """A Markdown table of the short options and the keys that they set."""
    yield "| option | key |"
    yield "|---|---|"
    for option, key in SHORT_OPTIONS.items():
        yield f"| `--{option.replace('_', '-')}` | `{key}` |"


def values(field: FieldInfo) -> str:
    """What a key takes."""
    bounds = {sign: getattr(note, sign) for note in field.metadata for sign in SIGNS
              if hasattr(note, sign)}
    return ", ".join(dict.fromkeys(members(field.annotation, bounds)))


def members(annotation: Any, bounds: dict[str, float]) -> Iterator[str]:
    """The alternatives of an annotation, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from members(arguments[0], bounds)
    elif origin is Literal:
        yield from (f"`{value}`" for value in arguments)
    elif origin is dict:
        yield "mapping of texts"
    elif origin is tuple:
        yield f"list of {' or '.join(members(arguments[0], bounds))}s"
    elif annotation is NoneType:
        yield "null"
    elif arguments:
        for argument in arguments:
            yield from members(argument, bounds)
    elif annotation in NAMES:
        limits = " and ".join(f"{SIGNS[sign]} {bound:,}" for sign, bound in bounds.items())
        yield f"{NAMES[annotation]} {limits}".strip()
    else:
        fields = annotation.model_fields
        yield f"`{{{next(iter(fields))}: k}}`" if len(fields) == 1 else "mapping"


def default(field: FieldInfo) -> str:
    """What is taken where a key is missing."""
    if field.is_required():
        return "-"
    value = field.default
    if isinstance(value, Record) and value == type(value)():
        return "its own defaults"
    words = {None: "null", True: "true", False: "false"}
    return f"`{words[value] if value is None or isinstance(value, bool) else value}`"


if __name__ == "__main__":
    (DOCS / "run_file.md").write_text(page(), encoding="utf-8")
