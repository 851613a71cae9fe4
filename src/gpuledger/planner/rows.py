"""Distinct combinations of columns: what is computed once for all layouts that share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .walks import Array

LARGEST_TABLE = 2**24  # values that a table of numbers has, at most


@dataclass(frozen=True)
class Rows:
    """Distinct combinations of some columns; `of_layout` says which one each layout has."""

    columns: dict[str, Array]
    of_layout: Array

    @classmethod
    def of(cls, columns: Mapping[Any, Array]) -> Rows:
        """The combinations that occur, in the order of their values."""
        key, size = np.zeros(len(next(iter(columns.values()))), np.int64), 1
        for column in columns.values():
            number, count = numbered(column)
            key, size = key * count + number, size * count
        of_layout, count = numbered(key) if size <= LARGEST_TABLE else numbered_by_sorting(key)
        one = np.empty(count, np.int64)
        one[of_layout] = np.arange(len(key))
        return cls({name: column[one] for name, column in columns.items()}, of_layout)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def classes(self, *names: str, apart: tuple[str, ...] = ()) -> Iterator[Array]:
        """Numbers of the rows that agree in `names`, and in whether `apart` is more than 1."""
        keys = [self.columns[name] for name in names] + [self.columns[name] > 1 for name in apart]
        packed = Rows.of(dict(enumerate(keys))) if keys else None
        group = packed.of_layout if packed else np.zeros(len(self), np.int64)
        for number in range(int(group.max(initial=-1)) + 1):
            yield np.flatnonzero(group == number)


def numbered(column: Array) -> tuple[Array, int]:
    """Each value's number among those that occur, and how many occur: by a table of all values."""
    column = column.astype(np.int64)            # truths too are numbers here
    there = np.zeros(int(column.max(initial=0)) + 1, bool)
    there[column] = True
    numbers = np.cumsum(there) - 1
    return numbers[column], int(numbers[-1]) + 1


def numbered_by_sorting(column: Array) -> tuple[Array, int]:
    """The same for values that are too far apart for a table."""
    values, numbers = np.unique(column, return_inverse=True)
    return numbers, len(values)
