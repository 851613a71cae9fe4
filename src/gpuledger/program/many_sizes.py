"""Sizes of many runs at once: NumPy integer columns that stand wherever a size is an int.

A step computes the same products of the same sizes again and again, layer by layer. So each result
is remembered by the size it came from, and arithmetic on a column costs what a lookup costs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .sizes import MixedSizes, Size

Operation = Callable[[Any, Any], Any]


class ManySizes:
    """One size per run. Where a size decides, all runs must agree: else MixedSizes is raised, by
    which they are divided."""

    __slots__ = ("cells", "known", "sums", "times", "truth")

    def __init__(self, cells: Any):
        self.cells = np.asarray(cells, dtype=np.int64)
        self.known: dict[tuple[Operation, bool, object], tuple[Size, ManySizes]] = {}
        self.sums: dict[int, ManySizes] = {}             # with a number, known without a further look
        self.times: dict[int, ManySizes] = {}
        self.truth: bool | None = None

    @classmethod
    def of(cls, values: Any) -> Size:
        """A column of these values, or the one number that all of them are."""
        values = np.asarray(values, dtype=np.int64)
        first = int(values.flat[0])
        return first if (values == first).all() else cls(values)

    def _result(self, operation: Operation, other: Size, *, reverse: bool = False) -> ManySizes:
        key = operation, reverse, id(other) if isinstance(other, ManySizes) else other
        found = self.known.get(key)
        if found is None:
            operand = other.cells if isinstance(other, ManySizes) else other
            cells = operation(operand, self.cells) if reverse else operation(self.cells, operand)
            found = other, ManySizes(cells)          # `other` stays alive, so its id stays its own
            self.known[key] = found
        return found[1]

    def __bool__(self) -> bool:
        if self.truth is None:
            if self.cells.any() and not self.cells.all():
                raise MixedSizes(self.cells != 0)
            self.truth = bool(self.cells.all())
        return self.truth

    def __index__(self) -> int:
        """The one value of all runs, for code that counts."""
        if not self == int(self.cells.flat[0]):
            raise MixedSizes(self.cells == self.cells.flat[0])
        return int(self.cells.flat[0])

    __int__ = __index__

    def __len__(self) -> int:
        return len(self.cells)

    def __hash__(self) -> int:
        return id(self)

    def __format__(self, spec: str) -> str:
        """In descriptions, which a walk of many runs does not return."""
        return "various"

    def tolist(self) -> list[int]:
        """As NumPy's."""
        values: list[int] = self.cells.tolist()
        return values

    def __neg__(self) -> ManySizes:
        return self._result(operator.mul, -1)

    def __add__(self, other: Size) -> ManySizes:
        if other.__class__ is not int:
            return self._result(operator.add, other)
        found = self.sums.get(other)
        if found is None:
            found = self.sums[other] = self._result(operator.add, other)
        return found

    def __sub__(self, other: Size) -> ManySizes:
        return self._result(operator.sub, other)

    def __rsub__(self, other: Size) -> ManySizes:
        return self._result(operator.sub, other, reverse=True)

    def __mul__(self, other: Size) -> ManySizes:
        if other.__class__ is not int:
            return self._result(operator.mul, other)
        found = self.times.get(other)
        if found is None:
            found = self.times[other] = self._result(operator.mul, other)
        return found

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Size) -> ManySizes:
        return self._result(operator.floordiv, other)

    def __rfloordiv__(self, other: Size) -> ManySizes:
        return self._result(operator.floordiv, other, reverse=True)

    def __mod__(self, other: Size) -> ManySizes:
        return self._result(operator.mod, other)

    def __rmod__(self, other: Size) -> ManySizes:
        return self._result(operator.mod, other, reverse=True)

    def __eq__(self, other: object) -> Any:
        return self._result(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._result(operator.ne, other)

    def __lt__(self, other: Size) -> ManySizes:
        return self._result(operator.lt, other)

    def __le__(self, other: Size) -> ManySizes:
        return self._result(operator.le, other)

    def __gt__(self, other: Size) -> ManySizes:
        return self._result(operator.gt, other)

    def __ge__(self, other: Size) -> ManySizes:
        return self._result(operator.ge, other)

    def __and__(self, other: Size) -> ManySizes:
        return self._result(operator.and_, other)

    __rand__ = __and__

    def __or__(self, other: Size) -> ManySizes:
        return self._result(operator.or_, other)

    __ror__ = __or__


def cells(size: Size, columns: slice) -> Any:
    """A size as one entry for each of these runs."""
    if isinstance(size, ManySizes):
        return size.cells[columns]
    return np.full(columns.stop - columns.start, int(size), dtype=np.int64)


def distinct_cells(sizes: Sequence[Size], columns: slice) -> Any:
    """The same for many sizes, one row each; a size that comes again is looked up once."""
    found: dict[object, int] = {}
    rows = []
    for size in sizes:
        key = id(size) if isinstance(size, ManySizes) else size
        rows.append(found.setdefault(key, len(found)))
    first = dict(zip(reversed(rows), reversed(sizes), strict=True))
    table = np.stack([cells(first[row], columns) for row in range(len(found))])
    return table[rows]
