"""Causal self-attention: projections, norms of queries and keys, rotary positions, the core, the
output."""
from __future__ import annotations

from gpuledger.config.model import Model
from gpuledger.config.training import Training

from . import fused_kernels, views
from . import operators as op
from .attention_kernels import Core, core
from .local import Local
from .norm import NormWeights, norm
from .program import Tape
from .tensor import Tensor
from .tensor_parallel import column_input, column_linear, row_linear

Heads = tuple[Tensor, Tensor, Tensor]      # query (b, a, s, d); key and value (b, kv, s, d)


def attention(tape: Tape, x: Tensor, model: Model, training: Training, local: Local,
              layer: int) -> Tensor:
    """(b, s, h) -> (b, s, h)."""
    with tape.part("attention", x):
        project = fused_projection if model.qkv_projection == "fused" else separate_projections
        (query, key, value), out = project(tape, x, model, training, local)
        if model.positions == "rotary" and not tape.kernels.rotary:
            table = rotary_table(tape, model, local)
            query, key = rotate(tape, query, table), rotate(tape, key, table)
        if model.num_kv_heads != model.num_heads:
            with tape.part("repeat", value, key):
                key = views.repeat_heads(tape, "key", key, local.num_heads)
                value = views.repeat_heads(tape, "value", value, local.num_heads)
        tape.hold(query, key, value)
        y = core(tape, Core.of_layer(model, training, layer), local, (query, key, value))
        b, a, s, d = query.shape
        y = views.transpose(tape, "heads last", y, 1, 2)
        y = views.contiguous(tape, "heads merged", y)
        y = views.reshape(tape, "attention output", y, (b, s, a * d))
        y = row_linear(tape, local, out, y)
        return fused_kernels.dropout(tape, "attention dropout", y) if model.dropout else y


def output_weights(tape: Tape, model: Model, local: Local) -> op.LinearWeights:
    """(b, s, a d) -> (b, s, h)."""
    return op.LinearWeights.of(tape, "attention out", local.num_heads * model.head_dim,
                               model.hidden_size, bias=model.bias.attention_out)


def fused_projection(tape: Tape, x: Tensor, model: Model, training: Training,
                     local: Local) -> tuple[Heads, op.LinearWeights]:
    """One matrix; query, key and value are views of its output."""
    d = model.head_dim
    widths = (local.num_heads * d, local.num_kv_heads * d, local.num_kv_heads * d)
    weights = op.LinearWeights.of(
        tape, "qkv", model.hidden_size, sum(widths), bias=model.bias.query
    )
    query_norm, key_norm = head_norms(tape, model, training, local)
    out = output_weights(tape, model, local)
    qkv = column_linear(tape, local, weights, column_input(tape, local, x))
    if tape.kernels.rotary and model.qk_norm == "none":
        qkv = fused_kernels.rotate_in_place(tape, qkv)
    query, key, value = views.split(tape, "qkv split", qkv, widths)
    return (split_heads(tape, "query", query, model, query_norm),
            split_heads(tape, "key", key, model, key_norm),
            split_heads(tape, "value", value, model, None)), out


def separate_projections(tape: Tape, x: Tensor, model: Model, training: Training,
                         local: Local) -> tuple[Heads, op.LinearWeights]:
    """Three matrices."""
    h, d, bias = model.hidden_size, model.head_dim, model.bias
    weights = [op.LinearWeights.of(tape, name, h, heads * d, bias=biased)
               for name, heads, biased in (("query", local.num_heads, bias.query),
                                           ("key", local.num_kv_heads, bias.key_value),
                                           ("value", local.num_kv_heads, bias.key_value))]
    query_norm, key_norm = head_norms(tape, model, training, local)
    out = output_weights(tape, model, local)
    x = column_input(tape, local, x)

    def heads(i: int, name: str, normed: NormWeights | None) -> Tensor:
        return split_heads(tape, name, column_linear(tape, local, weights[i], x), model, normed)

    query, key, value = (
        heads(0, "query", query_norm),
        heads(1, "key", key_norm),
        heads(2, "value", None),
    )
    return (query, key, value), out


def head_norms(tape: Tape, model: Model, training: Training,
               local: Local) -> tuple[NormWeights | None, NormWeights | None]:
    """Norms of queries and keys: over one head, or over the whole projection."""
    if model.qk_norm == "none":
        return None, None
    d = model.head_dim
    query, key = ((d, d) if model.qk_norm == "head"
                  else (local.num_heads * d, local.num_kv_heads * d))
    return (NormWeights.of(tape, "query norm", model, training, query),
            NormWeights.of(tape, "key norm", model, training, key))


def split_heads(tape: Tape, name: str, x: Tensor, model: Model,
                weights: NormWeights | None) -> Tensor:
    """(b, s, n d) -> (b, n, s, d), a view; normed before (`full`) or per head (`head`)."""
    b, s, width = x.shape
    d = model.head_dim
    per_head = weights is not None and model.qk_norm == "head"
    if weights is not None and not per_head:
        x = norm(tape, weights, x)
    if rotates(tape, name, model) and not per_head:
        x = fused_kernels.rotate_in_place(tape, x)
    x = views.reshape(tape, f"{name} in heads", x, (b, s, width // d, d))
    if weights is not None and per_head:
        x = norm(tape, weights, x, divided=tape.dtensors)
        if rotates(tape, name, model):
            x = fused_kernels.rotate_in_place(tape, x)
    return views.transpose(tape, f"{name} heads", x, 1, 2)


def rotates(tape: Tape, name: str, model: Model) -> bool:
    """The fused kernel turns queries and keys on their own, unless they lie in one tensor with
    values."""
    together = model.qkv_projection == "fused" and model.qk_norm == "none"
    return tape.kernels.rotary and name in ("query", "key") and not together


def rotary_table(tape: Tape, model: Model, local: Local) -> Tensor:
    """cos or sin (s, rotary_dim), in the dtype of the weights."""
    return Tensor("cos or sin", (local.seq_len, model.rotary_dim or model.head_dim),
                  tape.precision.weight_dtype, "table")


def rotate(tape: Tape, x: Tensor, table: Tensor) -> Tensor:
    """x * cos + cat(-second, first) * sin on (b, a, s, d); a narrower table rotates the first dims
    only."""
    width, d = table.shape[-1], x.shape[-1]
    with tape.part("rotate", x):
        if width is not d and width != d:
            turned, kept = (
                views.slice_last(tape, f"{x.name} {name}", x, start, size)
                for name, start, size in (
                    ("rotated dims", 0, width),
                    ("other dims", width, d - width),
                )
            )
            tape.hold(turned, kept)
            turned = rotate(tape, turned, table)
            return views.concatenate(tape, f"{x.name} rotated", (turned, kept), x.shape)
        return rotate_all(tape, x, table)


def rotate_all(tape: Tape, x: Tensor, table: Tensor) -> Tensor:
    """Half-rotation form of RoPE. Ref: RoFormer (2104.09864) eq. 34, as GPT-NeoX and LLaMA write
    it."""
    half = x.shape[-1] // 2
    first, second = views.split(tape, "halves", x, (half, half))
    left = op.multiply_by_table(tape, "x * cos", x, table)
    turned = views.concatenate(
        tape, "turned", (op.elementwise(tape, "-second", second), first), x.shape
    )
    right = op.multiply_by_table(tape, "turned * sin", turned, table)
    return op.add(tape, f"{x.name} rotated", left, right)
