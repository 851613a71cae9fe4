"""Every differentiable kernel, and the PyTorch expression it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gpuledger.errors import InputError
from gpuledger.torch_runs.kernels import activation, dropout, load, loss, norm, rotary
from gpuledger.torch_runs.kernels.toolchain import find_cxx

EPS = 1e-5
IGNORED = -100
PROBABILITY, SEED = 0.3, 11

Outputs = tuple[Tensor, ...]


def library(mode: str) -> Any:
    """The operators of a mode; skips where no compiler is installed."""
    try:
        find_cxx()
    except InputError as error:
        pytest.skip(f"the kernels cannot be built here: {error.problems[0].message}")
    return load(mode)


@pytest.fixture(params=["cpu", "host"], scope="session")
def ops(request: pytest.FixtureRequest) -> Any:
    """The plain CPU loops, and the CUDA sources run on the CPU."""
    return library(request.param)


@dataclass(frozen=True)
class Case:
    """A kernel, the same in PyTorch, and its inputs' shapes for `rows` and `cols`."""

    name: str
    fused: Callable[..., Any]  # (ops, *inputs)
    reference: Callable[..., Any]  # (*inputs); `stored` marks what a 16-bit tensor holds
    shapes: Callable[[int, int], list[tuple[int, ...]]]
    normalises: bool = False  # divides by sqrt(variance + EPS)
    centers: bool = False  # subtracts the mean

    def inputs(self, rows: int, cols: int, dtype: torch.dtype, scale: float = 1.0) -> list[Tensor]:
        """Random inputs that need gradients, the same at every call. scale: of the activations."""
        random = torch.Generator().manual_seed(rows * 1000 + cols)
        shapes = self.shapes(rows, cols)
        drawn = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
        scaled = [x * scale if x.shape == shapes[0] else x for x in drawn]
        return [x.to(dtype).requires_grad_() for x in scaled]


class _Stored(torch.autograd.Function):
    """Rounds a value and its gradient to a dtype, as a tensor between two operators would."""

    dtype = torch.float64

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.to(_Stored.dtype).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy.to(_Stored.dtype).to(dy.dtype)


def stored(x: Tensor) -> Tensor:
    y: Tensor = _Stored.apply(x)
    return y


@contextmanager
def stored_as(dtype: torch.dtype) -> Iterator[None]:
    """Within this, `stored` rounds to dtype; elsewhere it does nothing to float64."""
    _Stored.dtype = dtype
    try:
        yield
    finally:
        _Stored.dtype = torch.float64


def as_tuple(outputs: Tensor | Outputs) -> Outputs:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def gradients_of(outputs: Outputs, inputs: list[Tensor]) -> Outputs:
    """Gradients for incoming gradients that are random, and the same for every dtype and device."""
    random = torch.Generator().manual_seed(5)
    incoming = [
        torch.randn(y.shape, generator=random, dtype=torch.float64).to(y.dtype) for y in outputs
    ]
    return torch.autograd.grad(outputs, inputs, incoming)


def targets(rows: int, classes: int) -> Tensor:
    """Targets of which the fifth is ignored, and every fourth after it."""
    drawn = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(rows))
    drawn[4::4] = IGNORED
    return drawn


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


def layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def gelu(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    return functional.gelu(x if bias is None else x + bias, approximate="tanh" if tanh else "none")


def angles(seq: int, pairs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Tables of the accumulator's dtype."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    drawn = torch.rand(seq, pairs, generator=torch.Generator().manual_seed(3)) * 6.28
    return drawn.cos().to(wide), drawn.sin().to(wide)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool) -> Tensor:
    pairs = cosine.shape[1]
    cosine, sine = cosine[:, None].to(x.dtype), sine[:, None].to(x.dtype)
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pair = torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1).flatten(-2)
    else:
        a, b = turned[..., :pairs], turned[..., pairs:]
        pair = torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)
    return torch.cat([pair, rest], -1)


def rotary_case(name: str, interleaved: bool, rest: int, in_place: bool = False) -> Case:
    def tables(x: Tensor) -> tuple[Tensor, Tensor]:
        cosine, sine = angles(x.shape[1], (x.shape[-1] - rest) // 2, x.dtype)
        return cosine.to(x.device), sine.to(x.device)

    def fused(ops: Any, x: Tensor) -> Tensor:
        if in_place:
            return rotary.rotary_in_place(ops, x.clone(), *tables(x), interleaved)
        return rotary.rotary(ops, x, *tables(x), interleaved)

    return Case(
        name,
        fused,
        lambda x: rotated(x, *tables(x), interleaved),
        lambda rows, cols: [(2, rows, 2, 2 * (cols // 2) + rest)],
    )


def kept(x: Tensor) -> Tensor:
    """What the seed keeps, as 0 and 1, from the plain loops."""
    ones = torch.ones(x.shape, dtype=torch.float64)
    return dropout.dropout(load("cpu"), ones, PROBABILITY, SEED).ne(0)


def dropped(x: Tensor) -> Tensor:
    return x * kept(x).to(x) * (1 / (1 - PROBABILITY))


def cross_entropy(logits: Tensor) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    target = targets(*logits.shape).to(logits.device)
    return functional.cross_entropy(wide, target, ignore_index=IGNORED)


CASES = [
    Case(
        "rms_norm",
        lambda ops, x, w: norm.rms_norm(ops, x, w, EPS),
        rms,
        lambda rows, cols: [(rows, cols), (cols,)],
        normalises=True,
    ),
    Case(
        "add_rms_norm",
        lambda ops, x, r, w: norm.add_rms_norm(ops, x, r, w, EPS),
        lambda x, r, w: (rms(x + r, w), x + r),
        lambda rows, cols: [(rows, cols), (rows, cols), (cols,)],
        normalises=True,
    ),
    Case(
        "layer_norm",
        lambda ops, x, w, b: norm.layer_norm(ops, x, w, b, EPS),
        layer,
        lambda rows, cols: [(rows, cols), (cols,), (cols,)],
        normalises=True,
        centers=True,
    ),
    Case(
        "layer_norm_without_bias",
        lambda ops, x, w: norm.layer_norm(ops, x, w, None, EPS),
        lambda x, w: layer(x, w, None),
        lambda rows, cols: [(rows, cols), (cols,)],
        normalises=True,
        centers=True,
    ),
    Case(
        "add_layer_norm",
        lambda ops, x, r, w, b: norm.add_layer_norm(ops, x, r, w, b, EPS),
        lambda x, r, w, b: (layer(x + r, w, b), x + r),
        lambda rows, cols: [(rows, cols), (rows, cols), (cols,), (cols,)],
        normalises=True,
        centers=True,
    ),
    Case(
        "bias_gelu_tanh",
        lambda ops, x, b: activation.bias_gelu(ops, x, b, True),
        lambda x, b: gelu(x, b, True),
        lambda rows, cols: [(rows, cols), (cols,)],
    ),
    Case(
        "bias_gelu_erf",
        lambda ops, x, b: activation.bias_gelu(ops, x, b, False),
        lambda x, b: gelu(x, b, False),
        lambda rows, cols: [(rows, cols), (cols,)],
    ),
    Case(
        "gelu",
        lambda ops, x: activation.bias_gelu(ops, x, None, True),
        lambda x: gelu(x, None, True),
        lambda rows, cols: [(rows, cols)],
    ),
    Case(
        "bias_gelu_linear",
        lambda ops, x, b, d, e: activation.bias_gelu_linear(ops, x, b, d, e, True),
        lambda x, b, d, e: functional.linear(stored(gelu(x, b, True)), d, e),
        lambda rows, cols: [(rows, cols), (cols,), (6, cols), (6,)],
    ),
    Case(
        "gelu_linear",
        lambda ops, x, d: activation.bias_gelu_linear(ops, x, None, d, None, False),
        lambda x, d: functional.linear(stored(gelu(x, None, False)), d),
        lambda rows, cols: [(rows, cols), (6, cols)],
    ),
    Case(
        "swiglu",
        activation.swiglu,
        lambda g, u: functional.silu(g) * u,
        lambda rows, cols: [(rows, cols), (rows, cols)],
    ),
    Case(
        "swiglu_linear",
        activation.swiglu_linear,
        lambda g, u, d: functional.linear(stored(functional.silu(g) * u), d),
        lambda rows, cols: [(rows, cols), (rows, cols), (6, cols)],
    ),
    Case(
        "cross_entropy",
        lambda ops, x: loss.cross_entropy(ops, x.clone(), targets(*x.shape).to(x.device), IGNORED),
        cross_entropy,
        lambda rows, cols: [(rows, cols)],
    ),
    Case(
        "linear_cross_entropy",
        lambda ops, h, w: loss.linear_cross_entropy(
            ops, h, w, targets(len(h), len(w)).to(h.device), ignore_index=IGNORED, chunk_rows=2
        ),
        lambda h, w: cross_entropy(stored(functional.linear(h, w))),
        lambda rows, cols: [(rows, cols), (12, cols)],
    ),
    rotary_case("rotary", False, 0),
    rotary_case("rotary_interleaved", True, 0),
    rotary_case("rotary_of_a_part", False, 4),
    rotary_case("rotary_in_place", False, 0, in_place=True),
    Case(
        "dropout",
        lambda ops, x: dropout.dropout(ops, x, PROBABILITY, SEED),
        dropped,
        lambda rows, cols: [(rows, cols)],
    ),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
