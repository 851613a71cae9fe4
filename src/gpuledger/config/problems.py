"""What a record refuses, in the user's words: the key, its value, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ..errors import InputError, Problem
from .record import CROSS_FIELD, Record

MAX_PROBLEMS = 20  # said one by one; a file with more has one mistake many times
MAX_SHOWN = 60  # characters of a value
MAX_LISTED = 35  # names in a hint
R = TypeVar("R", bound=Record)

EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "model_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "finite_number": "a finite number",
}
BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def validated(kind: type[R], values: object, where: str = "") -> R:
    """The record of these values.

    `where` is the path of the record in the user's file. Raises InputError with all problems.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise all_of(problems_of(error, kind, where)) from None


def problems_of(error: ValidationError, kind: type[Record], where: str = "") -> list[Problem]:
    """pydantic's error as problems, enough of them to know whether there are too many to say."""
    details = error.errors(include_url=False)[: MAX_PROBLEMS + 1]
    return [problem for detail in details for problem in _problems_of_detail(detail, kind, where)]


def all_of(problems: Sequence[Problem]) -> InputError:
    """One error for all problems, or for the first MAX_PROBLEMS and that there are more."""
    if len(problems) <= MAX_PROBLEMS:
        return InputError.of(problems)
    more = Problem(f"more than {MAX_PROBLEMS} problems", "put the first ones right, then ask again")
    return InputError.of([*problems[:MAX_PROBLEMS], more])


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Names that a typing mistake may have meant, the most similar first."""
    from difflib import get_close_matches

    word = word[:MAX_SHOWN]
    close = get_close_matches(word, list(known), n=2 * count, cutoff=0.6)
    # Among the similar ones, whoever starts alike is meant more often.
    return sorted(close, key=lambda name: -_same_start(word, name))[:count]


def _same_start(one: str, other: str) -> int:
    """Letters in which two words agree before they differ."""
    pairs = list(zip(one, other, strict=False))
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))


def suggestion(word: str, known: Iterable[str], label: str) -> str:
    """A hint: the nearest names if there are any, then all of them unless they are too many."""
    names = list(dict.fromkeys(known))
    close = nearest(word, names)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    listed = ", ".join(names) if len(names) <= MAX_LISTED else "see docs/run_file.md"
    return f"{meant}{label}: {listed}"


def shown(value: object) -> str:
    """A value on one line, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, (Mapping, list, tuple, set)):
        return f"a {'mapping' if isinstance(value, Mapping) else 'list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = repr(value if isinstance(value, (int, float)) else str(value)[: 2 * MAX_SHOWN])
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _problems_of_detail(detail: Any, kind: type[Record], where: str) -> Iterator[Problem]:
    path = [str(part) for part in detail["loc"]]
    owner, field, names = _walk(kind, path)
    name = ".".join([*([where] if where else []), *names])
    if detail["type"] == CROSS_FIELD:
        prefix = f"{name}: " if name else ""
        for problem in detail["ctx"]["problems"]:
            yield Problem(prefix + problem.message, problem.hint)
    elif detail["type"] == "extra_forbidden":
        label = f"keys of {name.rpartition('.')[0]}" if "." in name else "known keys"
        yield Problem(
            f"unknown key {shown(name)[1:-1]}", suggestion(names[-1], owner.model_fields, label)
        )
    elif detail["type"] == "missing":
        yield Problem(f"{name} is missing", _what_it_is(field))
    else:
        yield _value_problem(detail, name, field)


def _value_problem(detail: Any, name: str, field: FieldInfo | None) -> Problem:
    value, kind = detail["input"], detail["type"]
    given = f"{name or 'this'} = {shown(value)}"
    if kind in BOUNDS:
        bound, words = BOUNDS[kind]
        return Problem(f"{given} must be {words} {detail['ctx'][bound]}", _what_it_is(field))
    if kind == "literal_error":
        choices = _choices(field)
        hint = (
            suggestion(str(value), choices, "one of")
            if choices
            else f"expected {detail['ctx']['expected']}"
        )
        return Problem(f"{given} is not known", hint)
    if kind in EXPECTED:
        return Problem(
            f"{given} is not {EXPECTED[kind]}", _retyped(value, kind) or _what_it_is(field)
        )
    return Problem(f"{given}: {detail['msg']}", _what_it_is(field))


def _retyped(value: object, kind: str) -> str | None:
    """How to write a value of the wrong type."""
    if kind == "int_type" and isinstance(value, float) and value.is_integer() and abs(value) < 1e18:
        return f"write it as a whole number: {int(value)}"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        digits = value.replace(",", "").replace("_", "").replace(" ", "")
        if digits.lstrip("+-").isdecimal():
            return f"write it without quotes and separators: {digits}"
    if kind == "string_type" and isinstance(value, (int, float)):
        return f'put it in quotes: "{value}"'
    if kind == "bool_type" and str(value).lower() in ("yes", "no", "on", "off", "1", "0"):
        return f"write {'true' if str(value).lower() in ('yes', 'on', '1') else 'false'}"
    return None


def _what_it_is(field: FieldInfo | None) -> str:
    if field is None:
        return "see docs/run_file.md"
    if isinstance(field.json_schema_extra, dict) and "hint" in field.json_schema_extra:
        return str(field.json_schema_extra["hint"])
    choices = _choices(field)
    listed = f" (one of: {', '.join(choices)})" if choices else ""
    return f"it is: {field.description}{listed}"


def _walk(kind: type[Record], path: list[str]) -> tuple[type[Record], FieldInfo | None, list[str]]:
    """The record and field at a path of pydantic, and the path without names of union members."""
    owner, field, names = kind, None, []
    for part in path:
        if field is not None:
            inner = next(_records_in(field.annotation), None)
            if part not in (inner or owner).model_fields and part in ("word", "mapping"):
                continue
            if inner is not None:
                owner, field = inner, None
        names.append(part)
        field = owner.model_fields.get(part, field)
    return owner, field, names


def _records_in(annotation: Any) -> Iterator[type[Record]]:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, UnionType):
        for argument in get_args(annotation):
            yield from _records_in(argument)


def _choices(field: FieldInfo | None) -> list[str]:
    """The words that a field takes, and the mapping beside them if it takes one too."""

    def literals(annotation: Any) -> Iterator[str]:
        if get_origin(annotation) is Literal:
            yield from (str(value) for value in get_args(annotation))
        elif isinstance(annotation, type) and issubclass(annotation, Record):
            yield "{" + ", ".join(f"{name}: ..." for name in annotation.model_fields) + "}"
        elif get_origin(annotation) in (Annotated, Union, UnionType):
            for argument in get_args(annotation):
                yield from literals(argument)

    one_record = isinstance(getattr(field, "annotation", None), type)
    return [] if field is None or one_record else list(literals(field.annotation))
