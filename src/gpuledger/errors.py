"""What gpuledger says when it cannot answer: what is wrong, with the numbers, and what to do."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong (with its numbers) and one hint how to put it right. One line each."""

    message: str
    hint: str


class GpuledgerError(Exception):
    """Anything gpuledger refuses. It may carry several problems: all that were found, not the first."""

    def __init__(self, message: str, hint: str):
        self.problems: tuple[Problem, ...] = (Problem(message, hint),)
        super().__init__(message)

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> Self:
        """One error for all of these problems (at least one)."""
        first, *others = problems
        error = cls(first.message, first.hint)
        error.problems = (first, *others)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes whole, whatever their class takes to make one."""
        return rebuilt, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        return "\n".join(f"error: {p.message}\nhint: {p.hint}" for p in self.problems)


def rebuilt(kind: type[GpuledgerError], args: tuple[Any, ...], state: dict[str, Any]
            ) -> GpuledgerError:
    """An error from its parts."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InputError(GpuledgerError):
    """The input is wrong: exit status 2."""


class NotYetError(InputError):
    """The input is right, but gpuledger cannot answer it yet: refused rather than answered wrongly."""
