"""The base of every configuration record: frozen, and strict about keys and types.

Modules that define records do not import `annotations` from `__future__`: pydantic would have to
evaluate every annotation from its text, which took as long as reading all files of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from ..errors import Problem

CROSS_FIELD = "cross_field"


class Record(BaseModel):
    """Immutable. A key that is not a field is an error, and so is a number given as text."""

    # defer_build: only the records that a command uses are compiled.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    @classmethod
    def prepared(cls, values: Any) -> Any:
        """The input before validation. Subclasses override it to accept short forms."""
        return values

    def cross_field_problems(self) -> Iterator[Problem]:
        """What is wrong with fields that are each right by themselves. Subclasses override it."""
        return iter(())

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, values: Any) -> Any:
        return cls.prepared(values)

    @model_validator(mode="after")
    def _check_cross_field(self) -> Self:
        found = tuple(self.cross_field_problems())
        if found:
            text = "; ".join(f"{problem.message} ({problem.hint})" for problem in found)
            raise PydanticCustomError(CROSS_FIELD, "{text}", {"text": text, "problems": found})
        return self
