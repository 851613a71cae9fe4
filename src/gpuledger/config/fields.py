"""`Field`: what one key of a record is, its default and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_origin, get_type_hints


class _Required:
    """The default of a field that has none."""

    def __repr__(self) -> str:
        return "required"


REQUIRED: Any = _Required()


@dataclass(frozen=True, eq=False)  # by identity: typing hashes what stands in Annotated
class FieldSpec:
    """One key of a record."""

    description: str = ""
    default: Any = REQUIRED
    default_factory: Callable[[], Any] | None = None
    hint: str | None = None  # what to do where the key is missing
    bounds: dict[str, float] = field(default_factory=dict)  # gt, ge, lt, le, as in pydantic_core
    annotation: Any = None

    def is_required(self) -> bool:
        """The key has to be given."""
        return self.default is REQUIRED and self.default_factory is None


def Field(  # noqa: N802 (a declaration in a class body, named as in pydantic)
    *,
    default: Any = REQUIRED,
    default_factory: Callable[[], Any] | None = None,
    description: str = "",
    hint: str | None = None,
    **bounds: float,
) -> Any:
    """A field of a record: its unit is in the description, its bounds are gt, ge, lt, le.

    Inside `Annotated` it only bounds the type.
    """
    return FieldSpec(description, default, default_factory, hint, bounds)


def fields_of(record: type, inherited: dict[str, FieldSpec]) -> dict[str, FieldSpec]:
    """The fields that a class body declares, and those that it inherits.

    Their specs leave the class, so that an attribute of the class is never mistaken for a value.
    """
    fields: dict[str, FieldSpec] = {}
    for name, annotation in get_type_hints(record, include_extras=True).items():
        if get_origin(annotation) is ClassVar:
            continue
        given = record.__dict__.get(name, inherited.get(name, REQUIRED))
        spec = given if isinstance(given, FieldSpec) else FieldSpec(default=given)
        fields[name] = replace(spec, annotation=annotation)
        if name in record.__dict__:
            delattr(record, name)
    return fields
