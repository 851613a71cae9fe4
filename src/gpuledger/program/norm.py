"""LayerNorm, PyTorch's fused RMSNorm, and the RMSNorm composed of elementary operators as in
Hugging Face models."""
from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.model import Model
from gpuledger.config.training import Training

from . import fused_kernels
from . import operators as op
from .layout import Strides, elementwise
from .program import INCOMING, Gradient, Moves, Op, Tape
from .reductions import reduce_columns, sum_rows
from .sizes import Size, ceil_div, minimum, product, round_up, uniformly
from .tensor import Tensor

MANY_ROWS = 65_536                   # from here on the fused kernels sum over rows in two passes


@dataclass(frozen=True)
class NormWeights:
    """One norm module: its name, kind and parameters (width)."""

    name: str
    kind: str
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, tape: Tape, name: str, model: Model, training: Training,
           width: Size | None = None) -> NormWeights:
        """The model's kind of norm; LayerNorm may have a bias."""
        width = width or model.hidden_size
        kind = model.norm
        weight = tape.weight(f"{name}.weight", width)
        if kind == "layernorm":
            bias = tape.weight(f"{name}.bias", width) if model.bias.norm else None
            return cls(name, kind, weight, bias)
        return cls(name, f"{kind} {training.rmsnorm_implementation}", weight, None)


def norm(tape: Tape, weights: NormWeights, x: Tensor, *, divided: bool = False) -> Tensor:
    """(..., width) -> the same shape, over the last dim.

    divided: each rank of DTensor has other rows, as with divided tokens, and forms a part of the
    parameters' gradients.
    """
    if tape.kernels.norm:
        return fused_kernels.norm(tape, weights, x)
    if tape.dtensors:
        x = as_dtensor(tape, x)
        whole_parameters(tape, weights, divided=divided or tape.divided_tokens)
    if weights.kind == "rmsnorm composed":
        return composed(tape, weights, x)
    return fused(tape, weights, x)


def as_dtensor(tape: Tape, x: Tensor) -> Tensor:
    """x as a DTensor, whose gradients are added up before they are x's. [X7]"""
    if x.dtensor:
        return x
    y = x.view(x.name, x.shape, x.strides)
    y.dtensor = True
    return tape.append(Op("as DTensor", (x,), (y,), gradients={x: INCOMING}, equation="X7"))


def whole_parameters(tape: Tape, weights: NormWeights, *, divided: bool) -> None:
    """DTensor does not divide the parameters of a norm, but perhaps the rows that it norms."""
    for parameter in (weights.weight, weights.bias):
        if parameter is not None:
            parameter.replicated = True
            if divided:
                tape.partial_gradients.add(parameter)


def fused(tape: Tape, weights: NormWeights, x: Tensor) -> Tensor:
    """In fp32 under autocast, whatever x is. A CPU has no fused RMSNorm: it is composed there. [S8]
    """
    if tape.device.kind == "cpu" and weights.kind == "rmsnorm fused":
        return composed_on_cpu(tape, weights, x)
    if not tape.precision.autocast:
        return fused_kernel(tape, weights, x)
    with tape.part(weights.name, x):
        return fused_kernel(tape, weights, op.in_float32(tape, x))


def fused_kernel(tape: Tape, weights: NormWeights, x: Tensor) -> Tensor:
    """Keeps x and fp32 statistics per row: mean and rstd, or rstd alone (RMSNorm). [S8]

    The kernel reads a contiguous copy of what is not contiguous, x or an incoming gradient.
    Ref: ATen/native/cuda/layer_norm_kernel.cu.
    """
    name, weight, bias = weights.name, weights.weight, weights.bias
    y, dx, dw = Tensor(name, x.shape, x.dtype), x.gradient(), weight.gradient()
    dy_copy, rstd = y.like(f"d({name}) copy"), Tensor(f"{name} rstd", x.shape[:-1], "float32")
    copy = Tensor(f"{x.name} copy", x.shape, x.dtype)
    copied, given_back = ((), ()) if x.strides is None else ((+copy,), (-copy,))
    parameters = [t for t in (weight, bias) if t is not None]
    formed = [dw, *(t.gradient() for t in parameters[1:])]
    sums, finished = sums_of_rows(tape, x, formed)
    gradients: dict[Tensor, Gradient] = {x: dx, **dict(zip(parameters, finished, strict=True))}
    new = (+dx, *(+t for t in formed))

    def backward(strides: Strides) -> Moves:
        before, after = ((), ()) if strides is None else ((+dy_copy,), (-dy_copy,))
        return *copied, *new, *before, *sums, *after, *given_back

    statistics = [rstd]
    if weights.kind != "rmsnorm fused":
        dtype = "float32" if tape.device.kind == "cuda" else x.dtype
        statistics = [Tensor(f"{name} {what}", x.shape[:-1], dtype) for what in ("mean", "rstd")]
    return tape.append(Op(name, (x, *parameters), (y, *statistics), saves=(x, *statistics),
                          forward=(*copied, +y, *(+t for t in statistics), *given_back),
                          backward=backward, gradients=gradients, equation="S8"))


def sums_of_rows(tape: Tape, x: Tensor, formed: list[Tensor]) -> tuple[Moves, list[Tensor]]:
    """Gradients of weight and bias over many rows: a table of partial sums each, then its sum. [K7]

    Returns the moves and the tensors that hold the gradients in the end. A block of 32 columns sums
    32 rows or more, so that the table has at most 2^20 sums.
    Ref: ATen/native/cuda/layer_norm_kernel.cu (LaunchGammaBetaBackwardCUDAKernel), measured at 108,
    132 and 142 SMs.
    """
    rows, n = product(x.shape[:-1]), x.shape[-1]
    narrow = n // 32 < tape.device.num_sms // 2
    if not uniformly((rows > MANY_ROWS) & narrow):
        return (), formed
    blocks = minimum(ceil_div(rows, 32), 2**20 // round_up(n, 32))
    tables = [Tensor(f"partial sums of {t.name}", (blocks, n), t.dtype, "scratch") for t in formed]
    finished = [Tensor(t.name, t.shape, t.dtype, t.role) for t in formed]
    moves: Moves = tuple(+table for table in tables)
    for first, final in zip(formed, finished, strict=True):
        partial, semaphores = reduce_columns(blocks, n, tape.device)
        moves = (*moves, +final, +partial, +semaphores, -semaphores, -partial, -first)
    return (*moves, *(-table for table in reversed(tables))), finished


def composed_on_cpu(tape: Tape, weights: NormWeights, x: Tensor) -> Tensor:
    """weight * (x rsqrt(mean(x^2) + eps)), all in fp32, then cast back.

    Ref: rms_norm_composite (ATen/native/layer_norm.cpp).
    """
    dtype, wide = x.dtype, op.cast(tape, x, "float32")
    inverse = inverse_root_mean_square(tape, weights.name, wide)
    y = scale_rows(tape, f"{weights.name} normalised", wide, inverse)
    return op.cast(tape, weigh(tape, weights.name, weights.weight, y), dtype)


def composed(tape: Tape, weights: NormWeights, x: Tensor) -> Tensor:
    """weight * (x rsqrt(mean(x^2) + eps)) in fp32, cast back. [S9]"""
    name = weights.name
    with tape.part(name, x):
        dtype, wrapped, x = x.dtype, x.dtensor, op.cast(tape, x, "float32")
        x.dtensor = wrapped
        inverse = inverse_root_mean_square(tape, name, x)
        y = scale_rows(tape, f"{name} normalised", x, inverse)
        tape.hold(y)
        y = op.cast(tape, y, dtype)
        return weigh(tape, name, weights.weight, y)


def inverse_root_mean_square(tape: Tape, name: str, x: Tensor) -> Tensor:
    """(..., width) -> (..., 1): rsqrt(mean(x^2) + eps)."""
    squared = op.square(tape, "x^2", x)
    variance = Tensor(f"{name} variance", (*x.shape[:-1], 1), "float32")
    d_squared = squared.gradient()
    tape.append(Op("mean", (squared,), (variance,), backward=(+d_squared,),
                   gradients={squared: d_squared}, equation="S9"))
    tape.hold(variance)
    shifted = variance.like("variance + eps")
    tape.append(Op("eps", (variance,), (shifted,), gradients={variance: INCOMING}, equation="S9"))
    inverse, d_shifted = shifted.like("rsqrt"), shifted.gradient()
    cube, half = shifted.like("rsqrt^3"), shifted.like("-rsqrt^3 / 2")
    return tape.append(Op("rsqrt", (shifted,), (inverse,), saves=(inverse,), equation="S9",
                          gradients={shifted: d_shifted},
                          backward=(+cube, +half, +d_shifted, -half, -cube)))


def scale_rows(tape: Tape, name: str, x: Tensor, factor: Tensor) -> Tensor:
    """(..., width) * (..., 1): the factor's gradient is a full product, summed by the engine."""
    dx, full, d_factor = x.gradient(), x.like("dY * X"), factor.gradient()
    y = x.like(name, strides=elementwise(x.shape, x.strides))
    return tape.append(Op(name, (x, factor), (y,), saves=(factor, x), backward=(+full, +dx),
                          reduce=(+d_factor, -full), gradients={factor: d_factor, x: dx},
                          follows=(dx,), equation="S9"))


def weigh(tape: Tape, name: str, weight: Tensor, x: Tensor) -> Tensor:
    """(width) * (..., width): the weight's gradient is a full product, summed over the rows by the
    engine.

    A wider weight (fp32 under autocast with a 16-bit x) widens the result, and x's gradient is cast
    back.
    """
    wide = "float32" if "float32" in (x.dtype, weight.dtype) else x.dtype
    y = x.like(name, wide, elementwise(x.shape, x.strides))
    dx, full, d_weight = x.like(f"d({x.name})", wide), x.like("dY * X", wide), weight.gradient()
    narrow = None if wide == x.dtype else x.gradient()
    gradients: dict[Tensor, Gradient] = {x: narrow or dx, weight: d_weight}

    def reduce(strides: Strides) -> Moves:
        partial, semaphores = sum_rows(x.shape, strides, tape.device)
        cast_back = () if narrow is None else (+narrow, -dx)
        return +d_weight, +partial, +semaphores, -semaphores, -partial, -full, *cast_back

    return tape.append(Op(name, (weight, x), (y,), saves=(x, weight), backward=(+dx, +full),
                          reduce=reduce, gradients=gradients, equation="S9",
                          follows=(dx,) if narrow is None else (narrow,)))
