"""`gpuledger presets`: list and show what is known."""
from __future__ import annotations

import json

import typer

from ..config import list_presets
from ..errors import InputError

KINDS = ("models", "gpus", "clusters", "runs")


def show_presets(kind: str | None, name: str | None, *, as_json: bool) -> None:
    """Names by kind, or one preset as it is written, source included. Raises InputError for unknown names."""
    if kind is not None and kind not in KINDS:
        raise InputError(f"there are no presets of kind {kind!r}", f"use one of {', '.join(KINDS)}")
    if kind is not None and name is not None:
        show_one(kind, name, as_json=as_json)
        return
    names = {k: list_presets(k) for k in KINDS if kind in (None, k)}
    if as_json:
        typer.echo(json.dumps(names, indent=2))
        return
    for k, members in names.items():
        typer.echo(f"{k} ({len(members)}):")
        typer.echo("\n".join(f"  {member}{short_names(k, member)}" for member in members))


def short_names(kind: str, member: str) -> str:
    """The names that may be written instead, in brackets."""
    from ..config.presets import aliases

    short = [name for name, target in aliases(kind).items() if target == member]
    return f" ({', '.join(short)})" if short else ""


def show_one(kind: str, name: str, *, as_json: bool) -> None:
    """The preset's file, or its keys as JSON."""
    from ..config.presets import preset_path, read_preset, unknown_preset

    path = preset_path(kind, name)
    if path is None:
        raise unknown_preset([kind], name)
    typer.echo(json.dumps(read_preset(kind, name), indent=2) if as_json
               else path.read_text(encoding="utf-8").rstrip())
