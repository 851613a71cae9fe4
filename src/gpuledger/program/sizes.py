"""Arithmetic on sizes: Python ints for one configuration, NumPy integer arrays for many at once."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

Size = Any      # int, or a NumPy integer array; an alias, so that signatures say which one is meant


class MixedSizes(ValueError):  # noqa: N818 (not a mistake: the answer "these belong in two programs")
    """Sizes of one array take different code paths; `condition` says which ones take the first."""

    def __init__(self, condition: Any):
        super().__init__("sizes that take different code paths belong in two programs")
        self.condition = condition


def uniformly(condition: Any) -> bool:
    """A choice of code path, not of size: in an array every entry must agree.

    Raises MixedSizes where it does not.
    """
    if condition is True or condition is False:
        return condition
    if not hasattr(condition, "all"):
        return bool(condition)       # of ManySizes too, which raises by itself
    if condition.any() and not condition.all():
        raise MixedSizes(condition)
    return bool(condition.all())


def each(function: Callable[..., int], *sizes: Size) -> Size:
    """A function of ints alone, entry by entry where sizes are arrays of one length."""
    array = next((size for size in sizes if hasattr(size, "tolist")), None)
    if array is None:
        return function(*sizes)
    rows = [size.tolist() if hasattr(size, "tolist") else [size] * len(array) for size in sizes]
    results = [function(*row) for row in zip(*rows, strict=True)]
    if not hasattr(array, "copy"):
        return type(array)(results)                      # ManySizes
    result = array.copy()
    result[:] = results
    return result


def ceil_div(a: Size, b: Size) -> Size:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(a: Size, b: Size) -> Size:
    """The smallest multiple of b that is at least a."""
    return -(-a // b) * b


def minimum(a: Size, b: Size) -> Size:
    return a * (a < b) + b * (a >= b)


def maximum(a: Size, b: Size) -> Size:
    return a * (a > b) + b * (a <= b)


def product(sizes: tuple[Size, ...]) -> Size:
    """Number of elements of a shape."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result
