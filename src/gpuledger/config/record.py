"""The base of every configuration record: frozen, and strict about unknown keys."""
from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Immutable. A key that is not a field is an error, and so is a number given as a string or a bool."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
