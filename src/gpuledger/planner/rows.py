"""Distinct combinations of columns: what is computed once for all layouts that share it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .walks import Array


@dataclass(frozen=True)
class Rows:
    """Distinct combinations of some columns; `of_layout` says which one each layout has."""

    columns: dict[str, Array]
    of_layout: Array

    @classmethod
    def of(cls, columns: dict[str, Array]) -> Rows:
        """Packed into one number each, and sorted."""
        key = np.zeros(len(next(iter(columns.values()))), np.int64)
        for column in columns.values():
            key = key * (int(column.max(initial=0)) + 1) + column
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        return cls({name: column[first] for name, column in columns.items()}, inverse)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def classes(self, *names: str, apart: tuple[str, ...] = ()) -> Iterator[Array]:
        """Numbers of the rows that agree in `names`, and in whether `apart` is more than 1."""
        keys = [self.columns[name] for name in names] + [self.columns[name] > 1 for name in apart]
        packed = Rows.of(dict(enumerate(keys))) if keys else None  # type: ignore[arg-type]
        group = packed.of_layout if packed else np.zeros(len(self), np.int64)
        for number in range(int(group.max(initial=-1)) + 1):
            yield np.flatnonzero(group == number)
