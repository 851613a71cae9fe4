"""Muon's temporaries: five Newton-Schulz iterations in bf16 on one matrix at a time."""
from __future__ import annotations

from collections.abc import Generator

from gpuledger.program.reductions import reduce_all
from gpuledger.program.sizes import minimum
from gpuledger.program.tensor import Move, Tensor

from .adafactor import taken
from .update_rules import Moves, Update, Variables

ITERATIONS = 5


def muon(update: Update) -> Moves:
    """The look-ahead gradient, then its orthogonalised copy, which lives until the next one's.
    [O12]

    Ref: torch/optim/_muon.py _single_tensor_muon.
    """
    yield from update.states(*update.weights)
    variables = Variables()
    for weight in update.weights:
        look_ahead = weight.like("look-ahead gradient")
        yield +look_ahead
        yield from variables.bind("update", look_ahead)
        result = yield from orthogonalised(update, look_ahead)
        yield from variables.bind("update", result)
    yield from variables.end()


def orthogonalised(update: Update, matrix: Tensor) -> Generator[Move, None, Tensor]:
    """X <- a X + (b X X^T + c (X X^T)^2) X, X of shape (m, n) or its transpose with m <= n. Returns
    X."""
    m = minimum(*matrix.shape)
    variables = Variables()
    x = matrix
    if matrix.dtype != "bfloat16":
        x = matrix.like("bf16 matrix", "bfloat16")
        yield +x
        yield from variables.bind("x", x)
    norm, clamped = (Tensor(name, (), "bfloat16") for name in ("norm", "clamped norm"))
    yield from (+norm, *taken(reduce_all(matrix.numel, update.device)), +clamped, -norm, -clamped)
    for _ in range(ITERATIONS):
        gram, polynomial = (Tensor(name, (m, m), "bfloat16") for name in ("gram", "polynomial"))
        yield +gram
        yield from variables.bind("gram", gram)
        yield +polynomial
        yield from variables.bind("polynomial", polynomial)
        x = matrix.like("x", "bfloat16")
        yield +x
        yield from variables.bind("x", x)
    del variables.bound["x"]
    yield from variables.end()
    return x
