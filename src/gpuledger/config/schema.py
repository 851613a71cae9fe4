"""From the annotation of a field to what pydantic_core validates it with. All types are strict."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from .fields import FieldSpec

PLAIN = {int: "int", float: "float", str: "str", bool: "bool"}
Schema = dict[str, Any]


def schema_of(annotation: Any, bounds: dict[str, float]) -> Schema:
    """The schema of a plain type, Literal, list, dict, record, or a union of them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        notes = [note.bounds for note in arguments[1:] if isinstance(note, FieldSpec)]
        merged = {key: value for note in [*notes, bounds] for key, value in note.items()}
        return schema_of(arguments[0], merged)
    if origin is Literal:
        return {"type": "literal", "expected": list(arguments)}
    if origin in (Union, UnionType):
        return _union(arguments, bounds)
    if origin is list:
        return {"type": "list", "items_schema": schema_of(arguments[0], {}), "strict": True}
    if origin is dict:
        keys, values = (schema_of(argument, {}) for argument in arguments)
        return {"type": "dict", "keys_schema": keys, "values_schema": values, "strict": True}
    if annotation in PLAIN:
        finite = {"allow_inf_nan": False} if annotation is float else {}
        return {"type": PLAIN[annotation], "strict": True, **finite, **bounds}
    schema: Schema = annotation.schema()  # a record
    return schema


def record_schema(record: Any, fields: dict[str, FieldSpec]) -> Schema:
    """The schema of a record: its fields, no other keys, and what the record checks itself."""
    members = {
        name: {"type": "model-field", "schema": _member(spec)} for name, spec in fields.items()
    }
    schema: Schema = {
        "type": "model",
        "cls": record,
        "config": {"extra_fields_behavior": "forbid"},
        "schema": {"type": "model-fields", "fields": members},
    }
    for kind, check in (("function-after", record.checked), ("function-before", record.prepared)):
        schema = {
            "type": kind,
            "function": {"type": "no-info", "function": check},
            "schema": schema,
        }
    return schema


def _member(spec: FieldSpec) -> Schema:
    schema = schema_of(spec.annotation, spec.bounds)
    if spec.default_factory is not None:
        return {"type": "default", "schema": schema, "default_factory": spec.default_factory}
    if spec.is_required():
        return schema
    return {"type": "default", "schema": schema, "default": spec.default}


def _union(members: tuple[Any, ...], bounds: dict[str, float]) -> Schema:
    """X | None, or words | record: a mistake is then reported for the form that was written."""
    present = [member for member in members if member is not NoneType]
    if len(present) == 2:
        word, mapping = (schema_of(member, {}) for member in present)
        schema: Schema = {
            "type": "tagged-union",
            "choices": {"word": word, "mapping": mapping},
            "discriminator": _word_or_mapping,
        }
    else:
        schema = schema_of(present[0], bounds)
    return schema if len(present) == len(members) else {"type": "nullable", "schema": schema}


def _word_or_mapping(value: Any) -> str:
    plain = value is None or isinstance(value, (str, int, float, list))
    return "word" if plain else "mapping"
