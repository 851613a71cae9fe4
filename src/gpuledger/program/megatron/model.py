"""Megatron's GPT model on one rank: embedding, transformer layers, output layer and loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from gpuledger.config.training import Training

from ..program import INCOMING, Op, Tape
from ..tensor import Move, Tensor
from .attention import BACKENDS, core, heads_of
from .engine_loss import engine_cross_entropy
from .linears import (
    Layout,
    NormWeights,
    Weights,
    column_linear,
    dropout_add,
    norm,
    norm_linear,
    row_linear,
    shared_buffer,
)


class LayerWeights:
    """Parameters of one layer, in the order of named_parameters().

    With Transformer Engine a norm belongs to the linear after it.
    """

    def __init__(self, tape: Tape, layout: Layout):
        model, local, h = layout.model, layout.local, layout.model.hidden_size
        d, bias = model.head_dim, model.bias
        if not layout.engine:
            self.norm1 = NormWeights.of(tape, "input norm", model)
        self.proj = Weights.of(tape, "linear_proj", (h, local.num_heads * d), bias=bias.attention_out)
        if layout.engine:
            self.norm1 = NormWeights.of(tape, "input norm", model)
        width = (local.num_heads + 2 * local.num_kv_heads) * d
        self.qkv = Weights.of(tape, "linear_qkv", (width, h), bias=bias.query)
        self.head_norms = ((NormWeights.of(tape, "query norm", model, d),
                            NormWeights.of(tape, "key norm", model, d))
                           if model.qk_norm == "head" else None)
        self.norm2 = NormWeights.of(tape, "mlp norm", model)
        f = local.ffn_hidden_size
        self.fc1 = Weights.of(tape, "linear_fc1", (f * (1 + model.gated), h), bias=bias.mlp_up)
        self.fc2 = Weights.of(tape, "linear_fc2", (h, f), bias=bias.mlp_down)


def layer(tape: Tape, layout: Layout, training: Training, number: int, x: Tensor, *,
          checkpoint: bool) -> Tensor:
    """One transformer layer; x is the residual stream (stream tokens, h). [M7]"""
    drops = layout.model.dropout > 0
    with tape.part(f"block {number}", x, checkpoint=checkpoint, layer=number):
        weights = LayerWeights(tape, layout)
        y = x if layout.engine else norm(tape, weights.norm1, x)
        with tape.part("self attention", y):
            if layout.engine:
                y = norm_linear(tape, layout, weights.norm1, weights.qkv, y)
            else:
                y = column_linear(tape, layout, weights.qkv, y)
            heads = heads_of(tape, layout, BACKENDS[training.attention], y, weights.head_norms)
            y = core(tape, layout, training, heads)
            y = row_linear(tape, layout, weights.proj, y)
        x = dropout_add(tape, "attention residual", y, x, dropout=drops)
        y = mlp(tape, layout, training, weights, x)
        return dropout_add(tape, "mlp residual", y, x, dropout=drops)


def mlp(tape: Tape, layout: Layout, training: Training, weights: LayerWeights, x: Tensor) -> Tensor:
    """Norm and MLP. Run again where recompute_modules name it, with the norm where that is fused with the
    first linear. Ref: transformer_layer.py (_forward_mlp). [M18]"""
    again = training.recompute == "selective" and "mlp" in layout.options.recompute_modules

    def checkpoint(argument: Tensor) -> AbstractContextManager[object]:
        return tape.part("mlp", argument, checkpoint=True) if again else nullcontext()

    def through(y: Tensor) -> Tensor:
        return row_linear(tape, layout, weights.fc2, activate(tape, layout, y))

    if layout.engine:
        with checkpoint(x):
            return through(norm_linear(tape, layout, weights.norm2, weights.fc1, x))
    y = norm(tape, weights.norm2, x)
    with checkpoint(y):
        return through(column_linear(tape, layout, weights.fc1, y))


def activate(tape: Tape, layout: Layout, x: Tensor) -> Tensor:
    """GELU or SwiGLU fused with the bias: keeps its input. [M7]"""
    y = Tensor("activation", (x.shape[0], layout.local.ffn_hidden_size), x.dtype)
    dx = x.gradient()
    return tape.append(Op("activation", (x,), (y,), saves=(x,), backward=(+dx,), gradients={x: dx},
                          equation="M7"))


def embedding(tape: Tape, layout: Layout) -> tuple[Tensor, Tensor]:
    """The residual stream, and the word embedding's weight, which the output layer may share. [M8]"""
    model, local = layout.model, layout.local
    h, shape = model.hidden_size, (layout.stream_tokens, model.hidden_size)
    token_weight = tape.weight("word_embeddings.weight", local.vocab_size, h)
    dtype = token_weight.dtype
    with tape.part("embedding"):
        x, dw = Tensor("word embedding", shape, dtype), token_weight.gradient()
        tape.append(Op("word embedding", (token_weight,), (x,), backward=(+dw,),
                       gradients={token_weight: dw}, equation="M8"))
        if model.positions == "learned":
            table = tape.weight("position_embeddings.weight", model.max_position_embeddings, h)
            rows, dt = Tensor("positions", (local.seq_len, h), dtype), table.gradient()
            y, d_rows = x.like("word + position"), rows.gradient()
            tape.append(Op("positions", (table,), (rows,), backward=(+dt,), gradients={table: dt},
                           equation="M8"))
            tape.append(Op("word + position", (x, rows), (y,), reduce=(+d_rows,),
                           gradients={x: INCOMING, rows: d_rows}, equation="M8"))
            x = y
        if model.dropout:
            mask, y, dx = Tensor("embedding mask", shape, "bool"), x.like("embedding"), x.gradient()
            tape.append(Op("embedding dropout", (x,), (y, mask), saves=(mask,),
                           forward=(+mask, +y), backward=(+dx,), gradients={x: dx}, equation="M8"))
            x = y
    return x, token_weight


def head(tape: Tape, layout: Layout, x: Tensor, tied_weight: Tensor | None) -> Tensor:
    """Final norm, output layer, loss: 2 + 4 bytes a logit, everything after the fp32 copy in place.

    With sequence parallelism the gathered input lies in the global buffer. The fused (compiled) loss has
    one fp32 copy more. [M9]
    """
    model, local = layout.model, layout.local
    final = NormWeights.of(tape, "final norm", model)
    weight = tied_weight
    if weight is None:
        weight = tape.weight("output_layer.weight", local.vocab_size, model.hidden_size)
    with tape.part("head", x):
        y = norm(tape, final, x)
        logits = output_layer(tape, layout, weight, y)
        tape.hold(logits)
        fused = layout.options.cross_entropy_loss_fusion
        if fused and layout.options.cross_entropy_fusion_impl == "te":
            return engine_cross_entropy(tape, logits, local.tp)
        return cross_entropy(tape, logits, fused=fused)


OUTPUT_LAYER = "output layer"  # whose weight gradient may wait for the end of the step


def output_layer(tape: Tape, layout: Layout, weight: Tensor, x: Tensor) -> Tensor:
    """Megatron's own linear, with cuBLAS's workspaces even beside Transformer Engine. [M9]"""
    v, h = weight.shape
    logits, dx, dw = Tensor("logits", (layout.tokens, v), x.dtype), x.gradient(), weight.gradient()
    backward: tuple[Move, ...] = (+dx, +dw)
    if layout.gathers:
        whole = Tensor("d(gathered x)", (layout.tokens, h), x.dtype)
        backward = (+whole, +dw, +dx, -whole)
    reads: tuple[Tensor, ...] = (x, weight)
    if layout.gathers:
        reads = (*reads, shared_buffer(2 * layout.tokens * h))
    flops = 2 * layout.tokens * v * h
    return tape.append(Op(OUTPUT_LAYER, reads, (logits,), saves=(x,), backward=backward,
                          gradients={x: dx, weight: dw}, product=True, flops=flops,
                          backward_flops=2 * flops, equation="M9"))


def cross_entropy(tape: Tape, logits: Tensor, *, fused: bool) -> Tensor:
    """Keeps the softmax (the fp32 copy), mask, shifted targets and the loss of each token. Backward
    writes the 16-bit gradient. Ref: megatron/core/tensor_parallel/cross_entropy.py. [M9]"""
    tokens = logits.shape[:1]
    softmax = logits.like("softmax", "float32")
    copy = logits.like("fp32 logits", "float32")
    labels, masked, numbers = (Tensor(n, tokens, "int64", "scratch") for n in
                               ("transposed labels", "shifted targets", "row numbers"))
    mask, loss = Tensor("target mask", tokens, "bool"), Tensor("loss of tokens", tokens, "float32")
    picked, largest, total = (Tensor(n, tokens, "float32", "scratch") for n in
                              ("picked logits", "max", "sum of exp"))
    made = (+copy, +softmax, -copy) if fused else (+softmax,)
    d_logits = logits.gradient()
    return tape.append(Op("cross entropy", (logits,), (loss, softmax, mask, masked),
                          saves=(softmax, mask, masked),
                          forward=(*made, +labels, +mask, +masked, +numbers, +picked, +largest, +total,
                                   -numbers, +loss, -labels, -picked, -largest, -total),
                          backward=(+d_logits,), gradients={logits: d_logits}, equation="M9"))
