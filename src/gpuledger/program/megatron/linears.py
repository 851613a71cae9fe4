"""Column- and row-parallel linears of Megatron-LM and Transformer Engine, and what fuses with them.

The residual stream is (s, b, h), divided by tp with sequence parallelism; only sizes matter here, so
shapes are written (tokens, width). A linear of Transformer Engine has a workspace of its own, so it
takes none of cuBLAS's. Weight gradients are added to the main gradients and freed at once.
Ref: Megatron-LM megatron/core/tensor_parallel/layers.py; TransformerEngine pytorch/module/linear.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.megatron import MegatronOptions
from gpuledger.config.model import Model

from ..local import Local
from ..program import Gradient, Incoming, Moves, Op, Tape
from ..sizes import Size
from ..tensor import Tensor

SAME = Incoming(lambda strides: strides)  # the gradient itself, which the engine never adds to


@dataclass(frozen=True)
class Weights:
    """W: (n, k), and perhaps c: (n)."""

    name: str
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, tape: Tape, name: str, shape: tuple[Size, Size], *, bias: bool) -> Weights:
        """New parameters, in the order of module.parameters()."""
        weight = tape.weight(f"{name}.weight", *shape)
        return cls(name, weight, tape.weight(f"{name}.bias", shape[0]) if bias else None)

    def gradients(self) -> tuple[dict[Tensor, Gradient], Moves]:
        """Gradients of weight and bias, and their allocation."""
        dw = self.weight.gradient()
        if self.bias is None:
            return {self.weight: dw}, (+dw,)
        dc = self.bias.gradient()
        return {self.weight: dw, self.bias: dc}, (+dw, +dc)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True)
class Layout:
    """Sizes and options by which Megatron's modules are written on one rank."""

    model: Model
    local: Local
    options: MegatronOptions

    @property
    def engine(self) -> bool:
        """Transformer Engine's linears and attention."""
        return self.options.transformer_impl == "transformer_engine"

    @property
    def tokens(self) -> Size:
        """b s of the gathered stream."""
        return self.local.micro_batch_size * self.local.seq_len

    @property
    def stream_tokens(self) -> Size:
        """b s of the residual stream on this rank."""
        return self.local.micro_batch_size * self.local.residual_seq_len

    @property
    def gathers(self) -> bool:
        return self.local.sequence_parallel


def shared_buffer(nbytes: Size) -> Tensor:
    """A part of Megatron's GlobalMemoryBuffer "mpu", which grows to the largest request and stays."""
    return Tensor("mpu buffer", (nbytes,), "uint8", "shared_buffer")


def column_linear(tape: Tape, layout: Layout, weights: Weights, x: Tensor) -> Tensor:
    """(stream tokens, k) -> (tokens, n / tp). Megatron's own, with the norm before it: keeps x; with sequence
    parallelism gathers it in the global buffer, in backward again, and scatters its gradient. [M1]"""
    n, k = weights.weight.shape
    y, dx = Tensor(weights.name, (layout.tokens, n), x.dtype), x.gradient()
    gradients, dw = weights.gradients()
    backward: Moves = (+dx, *dw)
    reads: tuple[Tensor, ...] = (x, *weights.tensors)
    if layout.gathers:
        whole = Tensor("d(gathered x)", (layout.tokens, k), x.dtype)
        backward = (+whole, +dx, -whole, *dw)
        reads = (*reads, shared_buffer(whole.nbytes))
    flops = 2 * layout.tokens * n * k
    return tape.append(Op(weights.name, reads, (y,), saves=(x,), backward=backward,
                          gradients={x: dx, **gradients}, product=True, flops=flops,
                          backward_flops=2 * flops, equation="M1"))


def norm_linear(tape: Tape, layout: Layout, norm_weights: NormWeights, weights: Weights,
                x: Tensor) -> Tensor:
    """Transformer Engine's norm and column-parallel linear in one: (stream tokens, k) -> (tokens, n / tp).

    Keeps x, the norm's output and its statistics. With sequence parallelism gathers the norm's output
    in forward and again in backward. The weight gradient lives until the whole backward returns. [M1] [M2]
    Ref: TransformerEngine pytorch/module/layernorm_linear.py.
    """
    n, k = weights.weight.shape
    normed, statistics, norm_gradients, norm_moves = norm_parts(norm_weights, x)
    y, dx, d_normed = Tensor(weights.name, (layout.tokens, n), x.dtype), x.gradient(), normed.gradient()
    gradients, dw = weights.gradients()
    forward: Moves = (*(+t for t in statistics), +normed, +y)
    backward: Moves = (+d_normed, *dw)
    if layout.gathers:
        gathered, again, whole = (Tensor(f"{what}gathered x)", (layout.tokens, k), x.dtype)
                                  for what in ("(", "(again ", "d("))
        forward = (*forward[:-1], +gathered, +y, -gathered)
        backward = (+again, +whole, +d_normed, -whole, *dw, -again)
    flops = 2 * layout.tokens * n * k
    return tape.append(Op(weights.name, (x, *norm_weights.tensors, *weights.tensors),
                          (y, normed, *statistics), saves=(x, normed, *statistics), forward=forward,
                          backward=(*backward, +dx, -d_normed, *norm_moves),
                          gradients={x: dx, **norm_gradients, **gradients}, flops=flops,
                          backward_flops=2 * flops, equation="M1"))


def row_linear(tape: Tape, layout: Layout, weights: Weights, x: Tensor) -> Tensor:
    """(tokens, k / tp) -> (stream tokens, n): summed over ranks in place, or scattered. The bias is added
    later. [M1]"""
    n, k = weights.weight.shape
    y, dx = Tensor(weights.name, (layout.stream_tokens, n), x.dtype), x.gradient()
    gradients, dw = weights.gradients()
    forward: Moves = (+y,)
    backward: Moves = (+dx, *dw)
    if layout.gathers:
        partial, gathered = (Tensor(name, (layout.tokens, n), x.dtype)
                             for name in ("partial sum", "gathered gradient"))
        forward = (+partial, +y, -partial)
        backward = (+gathered, +dx, *dw, -gathered)
    flops = 2 * layout.tokens * n * k
    return tape.append(Op(weights.name, (x, *weights.tensors), (y,), saves=(x,), forward=forward,
                          backward=backward, gradients={x: dx, **gradients},
                          product=not layout.engine, flops=flops, backward_flops=2 * flops,
                          equation="M1"))


@dataclass(frozen=True)
class NormWeights:
    """Weight and perhaps bias of a norm over `width`."""

    name: str
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, tape: Tape, name: str, model: Model, width: Size | None = None) -> NormWeights:
        """New parameters: an RMSNorm has no bias."""
        width = model.hidden_size if width is None else width
        weight = tape.weight(f"{name}.weight", width)
        bias = tape.weight(f"{name}.bias", width) if model.norm == "layernorm" else None
        return cls(name, weight, bias)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def norm_parts(weights: NormWeights, x: Tensor) -> tuple[
        Tensor, tuple[Tensor, ...], dict[Tensor, Gradient], Moves]:
    """Output, fp32 statistics per row (mean and rstd, or rstd alone), gradients of the weights and their
    allocation."""
    y = Tensor(weights.name, x.shape, x.dtype)
    statistics: tuple[Tensor, ...] = (Tensor(f"{weights.name} rstd", x.shape[:1], "float32"),)
    if weights.bias is not None:
        statistics = (Tensor(f"{weights.name} mean", x.shape[:1], "float32"), *statistics)
    gradients: dict[Tensor, Gradient] = {weight: weight.gradient() for weight in weights.tensors}
    moves = tuple(+g for g in gradients.values() if isinstance(g, Tensor))
    return y, statistics, gradients, moves


def norm(tape: Tape, weights: NormWeights, x: Tensor) -> Tensor:
    """Keeps x and its statistics. [M2]"""
    y, statistics, gradients, moves = norm_parts(weights, x)
    dx = x.gradient()
    return tape.append(Op(weights.name, (x, *weights.tensors), (y, *statistics), saves=(x, *statistics),
                          forward=(*(+t for t in statistics), +y), backward=(+dx, *moves),
                          gradients={x: dx, **gradients}, equation="M2"))


def dropout_add(tape: Tape, name: str, x: Tensor, residual: Tensor, *, dropout: bool) -> Tensor:
    """residual + dropout(x + c), fused: keeps the mask, one byte an element, and nothing else. [M3]"""
    y, dx = residual.like(name), x.gradient()
    gradients: dict[Tensor, Gradient] = {x: dx if dropout else SAME, residual: SAME}
    if not dropout:
        return tape.append(Op(name, (x, residual), (y,), gradients=gradients, equation="M3"))
    mask = Tensor(f"{name} mask", x.shape, "bool")
    return tape.append(Op(name, (x, residual), (y, mask), saves=(mask,), forward=(+mask, +y),
                          backward=(+dx,), gradients=gradients, equation="M3"))
