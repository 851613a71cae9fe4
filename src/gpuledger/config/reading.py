"""Text files to plain Python values: YAML (core schema of YAML 1.2) and JSON, with limits.

Numbers are read as YAML 1.2 and JSON read them: `1e-3` is a number, `010` is ten, `1:30` and `no`
are text. Refused with a hint: duplicate keys, aliases, tags, several documents, too many levels,
too large files, NaN, and what is not text at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ..errors import InputError

MAX_FILE_BYTES = 2**20
MAX_LEVELS = 32
MAX_DIGITS = 30  # of a number; beyond it Python's own conversion becomes slow

Values = dict[str, Any]


def read_file(path: Path) -> Values:
    """The mapping in a YAML or JSON file. Raises InputError, with the line, for everything else."""
    text = read_text(path)
    if not text.strip():
        raise InputError(
            f"{path} is empty", "a run file has the keys model, training, parallel, cluster"
        )
    where = str(path)
    values = read_json(text, where) if path.suffix.lower() == ".json" else read_yaml(text, where)
    if not isinstance(values, dict):
        raise InputError(
            f"{path} holds {_kind(values)}, not a mapping of keys to values",
            'write `key: value` lines (YAML) or {"key": value} (JSON)',
        )
    return values


def read_text(path: Path) -> str:
    """The text of a file, within limits. Raises InputError where there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}", "check the path and its permissions"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(
            f"{path} is larger than {MAX_FILE_BYTES} bytes",
            "a run file or config.json is a few kilobytes: is this another kind of file?",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not text: byte {error.start} is not UTF-8",
            "give a YAML or JSON file, saved as UTF-8",
        ) from None
    if "\0" in text:
        raise InputError(
            f"{path} is not text: byte {text.index(chr(0))} is zero", "give a YAML or JSON file"
        )
    return text


def read_json(text: str, where: str) -> Any:
    """The value in a JSON text."""

    def pairs(items: list[tuple[str, Any]]) -> Values:
        values: Values = {}
        for key, value in items:
            if key in values:
                raise InputError(f"{where}: key {key!r} appears twice", "keep one of them")
            values[key] = value
        return values

    def refuse_constant(word: str) -> NoReturn:
        raise InputError(f"{where}: {word} is not a number", "write a finite number, or null")

    try:
        value = json.loads(
            text,
            object_pairs_hook=pairs,
            parse_constant=refuse_constant,
            parse_int=lambda digits: _number(int, digits, where),
        )
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}",
            "check commas, quotes and brackets there",
        ) from None
    except RecursionError:
        raise _too_deep(where) from None
    _check_levels(value, where)
    return value


def read_yaml(text: str, where: str) -> Any:
    """The value in a YAML text; null for an empty one."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _YamlBuilder(yaml, where)
    try:
        return builder.document(iter(yaml.parse(text, Loader=loader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(
            f"{where} is not YAML: {line}{error.problem or error.context}",
            "check indentation, colons and quotes there",
        ) from None
    except yaml.YAMLError as error:
        raise InputError(
            f"{where} is not YAML: {' '.join(str(error).split())}", "give a YAML or JSON file"
        ) from None


class _YamlBuilder:
    """Python values from the parser's events, which bounds what a hostile file can cost."""

    def __init__(self, yaml: Any, where: str):
        self.yaml, self.where = yaml, where

    def document(self, events: Iterator[Any]) -> Any:
        """The one document of the stream."""
        value, documents = None, 0
        for event in events:
            if isinstance(event, self.yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self.refused(
                        event, "a second document starts", "keep one document per file"
                    )
                value = self.value(next(events), events, level=1)
        return value

    def value(self, event: Any, events: Iterator[Any], level: int) -> Any:
        """The value that starts at this event."""
        if isinstance(event, self.yaml.AliasEvent):
            raise self.refused(
                event, f"the alias *{event.anchor} is not read", "write the value out"
            )
        if level > MAX_LEVELS:
            raise _too_deep(self.where)
        if event.tag is not None and event.tag != "!":
            raise self.refused(event, f"the tag {event.tag} is not read", "write the plain value")
        if isinstance(event, self.yaml.MappingStartEvent):
            return self.mapping(events, level)
        if isinstance(event, self.yaml.SequenceStartEvent):
            return self.sequence(events, level)
        return plain_scalar(event.value, self.where) if event.implicit[0] else event.value

    def mapping(self, events: Iterator[Any], level: int) -> Values:
        values: Values = {}
        for event in events:
            if isinstance(event, self.yaml.MappingEndEvent):
                break
            if not isinstance(event, self.yaml.ScalarEvent):
                raise self.refused(event, "a key is not a word", "keys are names, such as seq_len")
            if event.value in values:
                raise self.refused(event, f"key {event.value!r} appears twice", "keep one of them")
            values[event.value] = self.value(next(events), events, level + 1)
        return values

    def sequence(self, events: Iterator[Any], level: int) -> list[Any]:
        values: list[Any] = []
        for event in events:
            if isinstance(event, self.yaml.SequenceEndEvent):
                break
            values.append(self.value(event, events, level + 1))
        return values

    def refused(self, event: Any, message: str, hint: str) -> InputError:
        return InputError(f"{self.where}, line {event.start_mark.line + 1}: {message}", hint)


def plain_scalar(text: str, where: str) -> Any:
    """The value of an unquoted YAML scalar under the core schema."""
    word = text.lower()
    if word in ("", "~", "null"):
        return None
    if word in ("true", "false"):
        return word == "true"
    digits = text.lstrip("+-").replace("_", "")
    if len(text) - len(text.lstrip("+-")) > 1 or digits[:1] not in "0123456789." or not digits:
        return text
    if digits.isdecimal() and digits.isascii():
        return _number(int, text, where)
    if word.lstrip("+-") in (".inf", ".nan"):
        raise InputError(f"{where}: {text} is not a number", "write a finite number, or null")
    try:
        return _number(float, text, where)
    except ValueError:
        return text


def _number(kind: type, text: str, where: str) -> Any:
    if len(text) > MAX_DIGITS:
        raise InputError(
            f"{where}: {text[:12]}... has {len(text)} digits",
            "no size here needs more than a dozen",
        )
    return kind(text)


def _check_levels(value: Any, where: str, level: int = 1) -> None:
    if level > MAX_LEVELS:
        raise _too_deep(where)
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_levels(item, where, level + 1)


def _too_deep(where: str) -> InputError:
    return InputError(f"{where} nests more than {MAX_LEVELS} levels", "a run file has at most four")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
