"""How a tensor lies in memory, and when PyTorch can view it differently without a copy.

A layout is a tuple of strides in elements, or None for a contiguous tensor (the common case, at no
cost). Strides decide copies: `bmm` folds batch and heads into one dimension and must copy what
cannot be viewed so; a gradient that arrives with other strides is made contiguous by `reshape`.
"""
from __future__ import annotations

from .sizes import Size, uniformly

Shape = tuple[Size, ...]
Strides = tuple[Size, ...] | None


class CopyNeeded(Exception):  # noqa: N818 (not an error: the answer "no view exists")
    """A tensor of these strides has no view of the wanted shape."""


def dense_strides(shape: Shape) -> tuple[Size, ...]:
    """Strides of a contiguous tensor: the last dimension is adjacent in memory."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def normal(shape: Shape, strides: Strides) -> Strides:
    """None (contiguous) if these strides are; dimensions of size 1 do not matter
    (TensorImpl::is_contiguous)."""
    if strides is None:
        return None
    expected: Size = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if not uniformly(size == 1):
            if not uniformly(stride == expected):
                return strides
            expected = expected * size
    return None


def transposed(shape: Shape, strides: Strides, i: int, j: int) -> tuple[Shape, Strides]:
    """Shape and strides with dimensions i and j exchanged; never a copy."""
    steps = list(dense_strides(shape) if strides is None else strides)
    sizes = list(shape)
    steps[i], steps[j] = steps[j], steps[i]
    sizes[i], sizes[j] = sizes[j], sizes[i]
    return tuple(sizes), normal(tuple(sizes), tuple(steps))


def expanded(shape: Shape, strides: Strides, dim: int, size: Size) -> tuple[Shape, Strides]:
    """A dimension of size 1 repeated `size` times by a stride of zero."""
    steps = list(dense_strides(shape) if strides is None else strides)
    steps[dim] = 0
    sizes = (*shape[:dim], size, *shape[dim + 1:])
    return sizes, normal(sizes, tuple(steps))


def viewed(shape: Shape, strides: Strides, new_shape: Shape) -> Strides:
    """Strides of `x.view(new_shape)`. Raises CopyNeeded where `reshape` would copy.

    Ref: at::detail::computeStride (ATen/TensorUtils.cpp): the old dimensions fall into runs that
    are contiguous in memory; each run must be covered by new dimensions exactly.
    """
    if strides is None:
        return None
    new_strides: list[Size] = [0] * len(new_shape)
    view_dim = len(new_shape) - 1
    run_stride: Size = strides[-1]
    run: Size = 1
    covered: Size = 1
    for dim in range(len(shape) - 1, -1, -1):
        run = run * shape[dim]
        ends = dim == 0 or (not uniformly(shape[dim - 1] == 1)
                            and not uniformly(strides[dim - 1] == run * run_stride))
        if not ends:
            continue
        while view_dim >= 0 and (uniformly(covered < run) or uniformly(new_shape[view_dim] == 1)):
            new_strides[view_dim] = covered * run_stride
            covered = covered * new_shape[view_dim]
            view_dim -= 1
        if not uniformly(covered == run):
            raise CopyNeeded
        if dim > 0:
            run_stride, run, covered = strides[dim - 1], 1, 1
    if view_dim != -1:
        raise CopyNeeded
    return normal(new_shape, tuple(new_strides))


def elementwise(shape: Shape, *operands: Strides) -> Strides:
    """Strides of the result that PyTorch allocates for operands of one (broadcast) shape.

    A stride of 0 marks a broadcast dimension. The result is dense, its dimensions in the order of
    the operands' strides. Ref: TensorIteratorBase::reorder_dimensions (ATen/TensorIterator.cpp).
    """
    if all(strides is None for strides in operands):
        return None
    given = [dense_strides(shape) if strides is None else strides for strides in operands]
    order = list(reversed(range(len(shape))))            # innermost first
    for i in range(1, len(order)):
        k = i
        for j in range(i - 1, -1, -1):
            swap = _should_swap(shape, given, order[j], order[k])
            if swap > 0:
                order[j], order[k] = order[k], order[j]
                k = j
            elif swap < 0:
                break
    strides: list[Size] = [0] * len(shape)
    step: Size = 1
    for dim in order:
        strides[dim] = step
        step = step * shape[dim]
    return normal(shape, tuple(strides))


def _should_swap(shape: Shape, operands: list[tuple[Size, ...]], inner: int, outer: int) -> int:
    """1 if `inner` belongs outside `outer`, -1 if not, 0 if no operand tells."""
    for strides in operands:
        a, b = strides[inner], strides[outer]
        if uniformly(a == 0) or uniformly(b == 0):
            continue
        if uniformly(a < b):
            return -1
        if uniformly(a > b):
            return 1
        if uniformly(shape[inner] > shape[outer]):
            return 1
    return 0


def dense(shape: Shape, strides: Strides) -> bool:
    """Every element of the storage belongs to the tensor, once (non-overlapping and dense)."""
    if strides is None:
        return True
    remaining = [(stride, size) for size, stride in zip(shape, strides, strict=True)
                 if not uniformly(size == 1)]
    expected: Size = 1
    while remaining:
        places = (i for i, (stride, _) in enumerate(remaining) if uniformly(stride == expected))
        place = next(places, None)
        if place is None:
            return False
        _, size = remaining.pop(place)
        expected = expected * size
    return True
