"""Softmax cross-entropy that overwrites the logits, and linear + cross-entropy in chunks.

Both compute the gradient in forward and scale it by the incoming gradient in backward, in place and
only if that is not 1. A target outside [0, vocabulary) makes the loss NaN. [FK7] [FK8]
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.library import Library, register_autograd

from gpuledger.torch_runs.kernels.shapes import accumulator_dtype, dense_like, register_shapes

IGNORE_INDEX = -100                         # torch.nn.functional.cross_entropy's default


def cross_entropy(ops: Any, logits: Tensor, target: Tensor, ignore_index: int = IGNORE_INDEX,
                  mean: bool = True) -> Tensor:
    """The loss, a float32 scalar (float64 for float64 logits).

    logits: [..., vocabulary], overwritten by their own gradient if they need one: nothing else may
    use them afterwards. target: [...] int64. mean: over targets that are not ignored; else the sum.
    """
    rows = logits.view(-1, logits.shape[-1])
    loss: Tensor = _CrossEntropy.apply(rows, target.reshape(-1), ops, ignore_index, mean)
    return loss


def linear_cross_entropy(ops: Any, hidden: Tensor, weight: Tensor, target: Tensor, *,
                         ignore_index: int = IGNORE_INDEX, chunk_rows: int = 0,
                         float32_accumulation: bool = False) -> Tensor:
    """The mean loss of logits = hidden @ weight.T, of which only chunk_rows rows exist at a time.

    hidden: [..., hidden_size]; weight: [vocabulary, hidden_size]; target: [...] int64.
    chunk_rows = 0 lets `default_chunk_rows` choose. The weight's gradient is added up over the
    chunks in its own dtype, or in float32.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    chunk = chunk_rows or default_chunk_rows(len(rows), rows.shape[1], weight.shape[0])
    tracked = torch.is_grad_enabled()
    loss: Tensor = ops.linear_cross_entropy(
        rows, weight, target.reshape(-1), ignore_index, chunk, float32_accumulation,
        tracked and hidden.requires_grad, tracked and weight.requires_grad)[0]
    return loss


def default_chunk_rows(tokens: int, hidden_size: int, vocab_size: int) -> int:
    """A power of two, such that a chunk of logits is about as large as all of hidden. [FK8]"""
    chunks = max(1, -(-vocab_size // hidden_size))
    rows = max(1, -(-tokens // chunks))
    return min(max(1, tokens), 1 << (rows - 1).bit_length())


def _scales_late(x: Tensor) -> bool:
    """Whether the division by the number of targets waits for backward.

    float16 cannot hold probability / tokens: it would underflow before a gradient scaler helps.
    """
    return x.dtype == torch.float16


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ops: Any, ignore_index: int,
                mean: bool) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        count = ops.count_targets(target, ignore_index) if mean else None
        late = _scales_late(logits)
        losses = logits.new_empty(len(logits), dtype=accumulator_dtype(logits))
        ops.cross_entropy_rows_(logits, losses, target, None if late else count, ignore_index,
                                wanted)
        if wanted:
            increment_version(logits)       # whoever else saved the logits must not go on quietly
            ctx.ops, ctx.late = ops, late and mean
            ctx.save_for_backward(logits, *((count,) if ctx.late else ()))
        loss: Tensor = ops.mean_loss(losses, count)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        logits, *count = ctx.saved_tensors
        dlogits = _scaled(ctx.ops, logits, dloss, count[0] if ctx.late else None)
        return dlogits, None, None, None, None


def _scaled(ops: Any, gradient: Tensor, factor: Tensor, count: Tensor | None) -> Tensor:
    """gradient * factor / count: in place, unless the graph is kept for another backward.

    torch.compile cuts the traced graph in two, and its backward half may not change what the
    forward half returns: there the scaling is out of place too.
    """
    if torch._C._autograd._get_current_graph_task_keep_graph() or get_proxy_mode() is not None:
        gradient = gradient.clone()
    ops.scale_(gradient, factor, count)
    return gradient


_libraries: list[Library] = []              # an operator lives as long as its Library


def _count_targets_shape(target: Tensor, ignore_index: int) -> Tensor:
    return target.new_empty(1)


def _cross_entropy_rows_in_place_shape(logits: Tensor, losses: Tensor, target: Tensor,
                                       count: Tensor | None, ignore_index: int,
                                       write_gradient: bool) -> None:
    return None


def _mean_loss_shape(losses: Tensor, count: Tensor | None) -> Tensor:
    return losses.new_empty(())


def _scale_in_place_shape(x: Tensor, factor: Tensor, count: Tensor | None) -> None:
    return None


def _linear_cross_entropy_shape(hidden: Tensor, weight: Tensor, target: Tensor,
                                ignore_index: int, chunk_rows: int, float32: bool,
                                want_hidden: bool, want_weight: bool) -> tuple[Tensor, ...]:
    return (hidden.new_empty((), dtype=accumulator_dtype(hidden)), target.new_empty(1),
            dense_like(hidden) if want_hidden else hidden.new_empty(0),
            dense_like(weight) if want_weight else weight.new_empty(0))


_SHAPES: dict[str, Callable[..., Any]] = {
    "count_targets": _count_targets_shape,
    "cross_entropy_rows_": _cross_entropy_rows_in_place_shape,
    "mean_loss": _mean_loss_shape,
    "scale_": _scale_in_place_shape,
    "linear_cross_entropy": _linear_cross_entropy_shape,
}


def register(namespace: str) -> None:
    """Shape rules of the kernels, and the operator that puts them together with matmuls."""
    ops = getattr(torch.ops, namespace)
    library = Library(namespace, "FRAGMENT")
    _libraries.append(library)

    _define_linear_cross_entropy(library, ops)
    register_shapes(namespace, _SHAPES)
    _register_gradient(namespace, ops)


class _WeightGradient:
    """Adds up dlogits.T @ hidden over the chunks."""

    def __init__(self, weight: Tensor, float32: bool) -> None:
        self.weight, self.empty = weight, True
        self.wide = float32 and weight.element_size() < 4
        self.total = torch.empty_like(weight, dtype=torch.float32 if self.wide else weight.dtype)

    def add(self, dlogits: Tensor, hidden: Tensor) -> None:
        if self.wide:
            product = dlogits.t() @ hidden
            self.total.copy_(product) if self.empty else self.total.add_(product)
        elif self.empty:
            torch.mm(dlogits.t(), hidden, out=self.total)
        else:
            self.total.addmm_(dlogits.t(), hidden)
        self.empty = False

    def result(self) -> Tensor:
        return (self.total.zero_() if self.empty else self.total).to(self.weight.dtype)


def linear_cross_entropy_forward(ops: Any, hidden: Tensor, weight: Tensor, target: Tensor,
                                 ignore_index: int, chunk_rows: int, float32: bool,
                                 want_hidden: bool, want_weight: bool) -> tuple[Tensor, ...]:
    """(loss, count, dhidden, dweight); a gradient that is not wanted is empty."""
    tokens, vocab_size = len(hidden), len(weight)
    count = ops.count_targets(target, ignore_index)
    losses = hidden.new_empty(tokens, dtype=accumulator_dtype(hidden))
    dhidden = dense_like(hidden) if want_hidden else hidden.new_empty(0)
    dweight = _WeightGradient(weight, float32) if want_weight else None
    logits = hidden.new_empty(min(chunk_rows, tokens), vocab_size)
    for start in range(0, tokens, chunk_rows):
        rows = slice(start, min(start + chunk_rows, tokens))
        chunk = logits[:rows.stop - start]
        torch.mm(hidden[rows], weight.t(), out=chunk)
        ops.cross_entropy_rows_(chunk, losses[rows], target[rows],
                                None if _scales_late(hidden) else count, ignore_index,
                                want_hidden or want_weight)
        if want_hidden:
            torch.mm(chunk, weight, out=dhidden[rows])
        if dweight:
            dweight.add(chunk, hidden[rows])
    return (ops.mean_loss(losses, count), count, dhidden,
            dweight.result() if dweight else weight.new_empty(0))


def _define_linear_cross_entropy(library: Library, ops: Any) -> None:
    library.define("linear_cross_entropy(Tensor hidden, Tensor weight, Tensor target, "
                   "int ignore_index, int chunk_rows, bool float32, bool want_hidden, "
                   "bool want_weight) -> (Tensor loss, Tensor count, Tensor dhidden, "
                   "Tensor dweight)")

    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return linear_cross_entropy_forward(ops, *arguments)

    library.impl("linear_cross_entropy", forward, "CompositeExplicitAutograd")


def _register_gradient(namespace: str, ops: Any) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, count, dhidden, dweight = output
        ctx.late = _scales_late(inputs[0])
        ctx.want_hidden, ctx.want_weight = inputs[-2:]
        ctx.save_for_backward(dhidden, dweight, *((count,) if ctx.late else ()))
        ctx.mark_non_differentiable(count, dhidden, dweight)
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, dloss: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        dhidden, dweight, *count = ctx.saved_tensors
        if dloss is None:
            return (None,) * 8
        divisor = count[0] if ctx.late else None
        return (_scaled(ops, dhidden, dloss, divisor) if ctx.want_hidden else None,
                _scaled(ops, dweight, dloss, divisor) if ctx.want_weight else None,
                *((None,) * 6))

    register_autograd(f"{namespace}::linear_cross_entropy", gradients, setup_context=keep)
