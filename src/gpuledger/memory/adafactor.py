"""Adafactor's temporaries: means of squared gradients, and an estimate of the variance of every
element."""
from __future__ import annotations

from collections.abc import Sequence

from gpuledger.program.device import Device
from gpuledger.program.reductions import reduce_all, reduce_columns, reduce_rows
from gpuledger.program.sizes import Size, product
from gpuledger.program.tensor import Move, Tensor

from .update_rules import Moves, Update, Variables


def adafactor_for_loop(update: Update) -> Moves:
    """Row and column means, their product in the parameter's size, one parameter after the other.
    [O10]

    Ref: torch/optim/_adafactor.py _single_tensor_adafactor.
    """
    yield from update.states(*update.weights)
    variables = Variables()
    for weight in update.weights:
        yield from norm(weight, update.device)
        if len(weight.shape) > 1:
            for name, mean, scratch in means(weight, update.device):
                yield from (+mean, *taken(scratch))
                yield from variables.bind(name, mean)
        else:
            squared = weight.like("gradient squared")
            yield +squared
            yield from variables.bind("squared", squared)
        estimate = weight.like("variance estimate")
        yield +estimate
        yield from variables.bind("estimate", estimate)
        if len(weight.shape) > 1:
            yield from mean_of_rows(weight, update.device)
        yield from variables.bind("update", estimate)
        yield from norm(weight, update.device)
    yield from variables.end()


def adafactor_foreach(update: Update) -> Moves:
    """All matrices together, then all vectors (or the other way round: as they first appear). [O11]

    Ref: torch/optim/_adafactor.py _multi_tensor_adafactor.
    """
    yield from update.states(*update.weights)
    groups: dict[bool, list[Tensor]] = {}
    for weight in update.weights:
        groups.setdefault(len(weight.shape) > 1, []).append(weight)
    previous: list[Tensor] = []
    for matrices, weights in groups.items():
        for weight in weights:
            yield from norm(weight, update.device)
        estimates = [weight.like("variance estimate") for weight in weights]
        yield from (matrix_estimates if matrices else vector_estimates)(
            weights, estimates, update.device
        )
        yield from (-estimate for estimate in previous)
        previous = estimates
        for weight in weights:
            yield from norm(weight, update.device)
    yield from (-estimate for estimate in previous)


def matrix_estimates(
    weights: Sequence[Tensor], estimates: Sequence[Tensor], device: Device
) -> Moves:
    """Row means of all, column means of all, products of all, means of row factors of all."""
    by_side = zip(*(means(weight, device) for weight in weights), strict=True)
    for side in by_side:
        for _, mean, scratch in side:
            yield from (+mean, *taken(scratch))
        yield from (-mean for _, mean, _ in side)
    yield from (+estimate for estimate in estimates)
    row_means = [Tensor("mean of rows", (1, 1), weight.dtype) for weight in weights]
    for weight, mean in zip(weights, row_means, strict=True):
        yield from (+mean, *taken(reduce_all(weight.shape[0], device)))
    yield from (-mean for mean in row_means)


def vector_estimates(
    weights: Sequence[Tensor], estimates: Sequence[Tensor], device: Device
) -> Moves:
    """Squared gradients of all, then clones of the variances of all."""
    squares = [weight.like("gradient squared") for weight in weights]
    yield from (+square for square in squares)
    yield from (-square for square in squares)
    yield from (+estimate for estimate in estimates)


Means = tuple[str, Tensor, tuple[Tensor, Tensor]]


def means(weight: Tensor, device: Device) -> tuple[Means, Means]:
    """(rows, 1) and (1, columns), each with its kernel's scratch."""
    rows, columns = weight.shape
    return (
        (
            "row mean",
            Tensor("row mean", (rows, 1), weight.dtype),
            reduce_rows(rows, columns, device),
        ),
        (
            "column mean",
            Tensor("column mean", (1, columns), weight.dtype),
            reduce_columns(rows, columns, device),
        ),
    )


def mean_of_rows(weight: Tensor, device: Device) -> Moves:
    """The mean of the row factor, a scalar, clamped in place and divided by."""
    mean = Tensor("mean of rows", (1, 1), weight.dtype)
    yield from (+mean, *taken(reduce_all(weight.shape[0], device)), -mean)


def norm(weight: Tensor, device: Device) -> Moves:
    """norm(2).item() of a tensor of this shape."""
    elements: Size = product(weight.shape)
    scalar = Tensor("norm", (), weight.dtype)
    yield from (+scalar, *taken(reduce_all(elements, device)), -scalar)


def taken(scratch: tuple[Tensor, Tensor]) -> tuple[Move, ...]:
    """Partial sums and semaphores, taken and given back by one kernel."""
    partial, semaphores = scratch
    return (+partial, +semaphores, -semaphores, -partial)
