"""The base of every configuration record: frozen, and strict about unknown keys."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from ..errors import Problem

CROSS_FIELD = "cross_field"


class Record(BaseModel):
    """Immutable. A key that is not a field is an error, and so is a number given as text."""

    # defer_build: a nested record is compiled once, inside the record that holds it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    def cross_field_problems(self) -> Iterator[Problem]:
        """What is wrong with fields that are each right by themselves. Subclasses override it."""
        return iter(())

    @model_validator(mode="after")
    def _check_cross_field(self) -> Self:
        found = tuple(self.cross_field_problems())
        if found:
            text = "; ".join(f"{problem.message} ({problem.hint})" for problem in found)
            raise PydanticCustomError(CROSS_FIELD, "{text}", {"text": text, "problems": found})
        return self
