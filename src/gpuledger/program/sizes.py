"""Arithmetic on sizes: Python ints for one configuration, NumPy integer arrays for many at once."""
from __future__ import annotations

from typing import Any

Size = Any      # int, or a NumPy integer array; an alias, so that signatures say which one is meant


def uniformly(condition: Any) -> bool:
    """A choice of code path, not of size: in an array every entry must agree.

    Raises ValueError where it does not: such sizes belong in two programs.
    """
    if condition is True or condition is False:
        return condition
    if not hasattr(condition, "all"):
        return bool(condition)
    if condition.any() and not condition.all():
        raise ValueError("sizes that take different code paths belong in two programs")
    return bool(condition.all())


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
