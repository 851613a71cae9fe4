"""The base of every configuration record: frozen, and strict about keys and types.

Records are validated by the engine of pydantic, pydantic_core, and have those methods of its models
that are used here. The rest of pydantic stays out: importing it takes longer than an estimate.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, NoReturn

from pydantic_core import PydanticCustomError, SchemaValidator
from typing_extensions import Self, dataclass_transform

from ..errors import Problem
from .fields import Field, FieldSpec, fields_of
from .schema import Schema, record_schema

CROSS_FIELD = "cross_field"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Record:
    """Immutable. A key that is not a field is an error, and so is a number given as text."""

    # What pydantic_core fills in when it makes an instance.
    __slots__ = (
        "__dict__",
        "__pydantic_extra__",
        "__pydantic_fields_set__",
        "__pydantic_private__",
    )

    model_fields: ClassVar[dict[str, FieldSpec]] = {}
    _validator: ClassVar[SchemaValidator | None] = None

    def __init_subclass__(cls) -> None:
        cls.model_fields = fields_of(cls, cls.model_fields)

    def __init__(self, **values: Any):
        self.validator().validate_python(values, self_instance=self)

    @classmethod
    def prepared(cls, values: Any) -> Any:
        """The input before validation. Subclasses override it to accept short forms."""
        return values

    def cross_field_problems(self) -> Iterator[Problem]:
        """What is wrong with fields that are each right by themselves. Subclasses override it."""
        return iter(())

    def checked(self) -> Self:
        """This record. Raises pydantic_core's error with all cross-field problems."""
        found = tuple(self.cross_field_problems())
        if found:
            text = "; ".join(f"{problem.message} ({problem.hint})" for problem in found)
            raise PydanticCustomError(CROSS_FIELD, "{text}", {"text": text, "problems": found})
        return self

    @classmethod
    def schema(cls) -> Schema:
        """What pydantic_core validates this record with."""
        return record_schema(cls, cls.model_fields)

    @classmethod
    def validator(cls) -> SchemaValidator:
        """The compiled schema, made when the first instance is."""
        if "_validator" not in cls.__dict__ or cls._validator is None:
            cls._validator = SchemaValidator(cls.schema())
        return cls._validator

    @classmethod
    def model_validate(cls, values: object) -> Self:
        """The record of a mapping. Raises pydantic_core.ValidationError."""
        record: Self = cls.validator().validate_python(values)
        return record

    @classmethod
    def model_validate_json(cls, text: str) -> Self:
        """The record of a JSON text. Raises pydantic_core.ValidationError."""
        return cls.model_validate(json.loads(text))

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """A copy with some fields replaced, which are not validated."""
        copy = type(self).__new__(type(self))
        object.__setattr__(copy, "__dict__", {**self.__dict__, **(update or {})})
        return copy

    def model_dump(
        self, *, mode: str = "python", exclude: Collection[str] = (), exclude_defaults: bool = False
    ) -> dict[str, Any]:
        """The fields as plain values, the same for Python and for JSON (`mode`)."""
        fields = type(self).model_fields
        return {
            name: _plain(value, exclude_defaults)
            for name, value in self.__dict__.items()
            if name not in exclude and not (exclude_defaults and value == fields[name].default)
        }

    def model_dump_json(self, *, indent: int | None = None, exclude_defaults: bool = False) -> str:
        """The fields as JSON."""
        return json.dumps(self.model_dump(exclude_defaults=exclude_defaults), indent=indent)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of each field."""
        return iter(self.__dict__.items())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"{type(self).__name__} is frozen: use model_copy(update={{{name!r}: ...}})"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.__dict__)


def _plain(value: Any, exclude_defaults: bool) -> Any:
    if isinstance(value, Record):
        return value.model_dump(exclude_defaults=exclude_defaults)
    if isinstance(value, dict):
        return {key: _plain(inner, exclude_defaults) for key, inner in value.items()}
    return (
        [_plain(inner, exclude_defaults) for inner in value] if isinstance(value, list) else value
    )


def _unpickled(kind: type[Record], fields: dict[str, Any]) -> Record:
    return kind.__new__(kind).model_copy(update=fields)
