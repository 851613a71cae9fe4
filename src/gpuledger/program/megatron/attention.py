"""Megatron's core attention: Transformer Engine's flash, fused (cuDNN) or unfused, or the local one.

Ref: TransformerEngine pytorch/attention/dot_product_attention; Megatron-LM
megatron/core/transformer/dot_product_attention.py.
"""

from __future__ import annotations

from gpuledger.config.training import Training

from .. import views
from ..program import INCOMING, Gradient, Moves, Op, Tape
from ..sizes import Size
from ..tensor import Tensor
from .linears import Layout, NormWeights, shared_buffer
from .ring import ring

BACKENDS = {"flash": "flash", "cudnn": "fused", "eager": "unfused"}


def heads_of(tape: Tape, layout: Layout, backend: str, qkv: Tensor,
             norms: tuple[NormWeights, NormWeights] | None) -> list[Tensor]:
    """Query, key and value of the projection's output, as the caller holds them until it returns.

    Views; rotary positions make queries and keys anew, and values are made contiguous, unless
    FlashAttention copies them anyway. [M4]
    """
    local, d = layout.local, layout.model.head_dim
    widths = {"query": local.num_heads * d, "key": local.num_kv_heads * d,
              "value": local.num_kv_heads * d}
    parts = dict(zip(widths, views.split(tape, "qkv split", qkv, tuple(widths.values())),
                     strict=True))
    tape.hold(parts["value"])
    for name, weights in zip(("query", "key"), norms or (), strict=False):
        parts[name] = head_norm(tape, weights, parts[name], d)
    if layout.model.positions == "rotary":
        for name in ("query", "key") if transposes(layout, backend) else tuple(widths):
            parts[name] = copied(tape, name, parts[name])
    tape.hold(*parts.values())
    return list(parts.values())


def transposes(layout: Layout, backend: str) -> bool:
    """FlashAttention reads (b, s, a, d) and Megatron has (s, b, a, d): the same where b is 1."""
    return backend == "flash" and layout.local.micro_batch_size > 1


def copied(tape: Tape, name: str, part: Tensor) -> Tensor:
    """Rotated, transposed or made contiguous."""
    return tape.append(Op(f"{name} (b, s)", (part,), (Tensor(name, part.shape, part.dtype),),
                          gradients={part: INCOMING}, equation="M4"))


def head_norm(tape: Tape, weights: NormWeights, x: Tensor, head_dim: Size) -> Tensor:
    """A norm per head of queries or keys: keeps statistics of each head, and makes a copy. [M2]"""
    tokens, width = x.shape
    y = Tensor(weights.name, x.shape, x.dtype)
    count = 1 if weights.bias is None else 2
    statistics = tuple(Tensor(f"{weights.name} statistics", (tokens * (width // head_dim),), "float32")
                       for _ in range(count))
    dx = x.gradient()
    return tape.append(Op(weights.name, (x,), (y, *statistics), saves=(x, *statistics),
                          forward=(*(+t for t in statistics), +y), backward=(+dx,),
                          gradients={x: dx}, equation="M2"))


def core(tape: Tape, layout: Layout, training: Training, heads: list[Tensor]) -> Tensor:
    """(tokens, a d / tp). Selective recompute runs it again, unless recompute_modules leave it out. [M18]"""
    backend = BACKENDS[training.attention]
    again = training.recompute == "selective" and "core_attn" in layout.options.recompute_modules
    with tape.part("core attention", *heads, checkpoint=again):
        if backend == "unfused":
            return unfused(tape, layout, training, heads)
        if transposes(layout, backend):
            heads = [copied(tape, name, head)
                     for name, head in zip(("query", "key", "value"), heads, strict=True)]
            tape.hold(*heads)
        return flash(tape, layout, backend, heads)


def flash(tape: Tape, layout: Layout, backend: str, heads: list[Tensor]) -> Tensor:
    """Keeps Q, K, V, the output, logsumexp (fp32) and 16 bytes of random state. FlashAttention's output
    is copied back to (s, b). [M5]"""
    query = heads[0]
    local = layout.local
    b, a, s = local.micro_batch_size, local.num_heads, local.seq_len
    if local.cp > 1:
        return returned(tape, b, backend, ring(tape, layout, backend, heads))
    y, lse = Tensor("attention", query.shape, query.dtype), Tensor("logsumexp", (b, a, s), "float32")
    state = Tensor("rng state", (2,), "int64")
    gradients, moves = gradients_of(heads)
    sums = Tensor("dQ accumulator", query.shape, "float32", "scratch")
    flops = 4 * b * a * s * s * layout.model.head_dim
    tape.append(Op(backend, tuple(heads), (y, lse, state), saves=(*heads, y, lse, state),
                   backward=(*moves, +sums, -sums), gradients=gradients, flops=flops,
                   backward_flops=flops * 5 // 2, equation="M5"))
    return returned(tape, b, backend, y)


def returned(tape: Tape, b: Size, backend: str, y: Tensor) -> Tensor:
    """The output, copied back from FlashAttention's (b, s) to (s, b)."""
    if backend != "flash" or b == 1:
        return y
    copied, dy = Tensor("attention (s, b)", y.shape, y.dtype), y.gradient()
    return tape.append(Op("transpose", (y,), (copied,), backward=(+dy,), gradients={y: dy},
                          equation="M5"))


def unfused(tape: Tape, layout: Layout, training: Training, heads: list[Tensor]) -> Tensor:
    """softmax 2 A, its dropout mask A and the dropped scores 2 A, A = b a s^2 / tp elements.

    Transformer Engine adds the products to a buffer of 2 A; the local attention has one that it never
    frees (kept by the framework). Softmax in fp32 keeps 4 A. [M6]
    """
    local, model = layout.local, layout.model
    b, a, s = local.micro_batch_size, local.num_heads, local.seq_len
    query = heads[0]
    if local.num_kv_heads != local.num_heads:
        heads = [query, *repeated(tape, layout, heads[1:])]
    shape, dtype = (b, a, s, s * local.cp), query.dtype
    scores, probabilities = Tensor("scores", shape, dtype), Tensor("softmax", shape, dtype)
    wide = Tensor("softmax in fp32", shape, "float32")
    buffer = Tensor("product buffer", shape, dtype, "scratch")
    in_fp32 = not layout.engine and layout.options.softmax_in_float32
    kept, writes = (wide, (wide, probabilities)) if in_fp32 else (probabilities, (probabilities,))
    forward: Moves = (+buffer, +scores, -buffer) if layout.engine else (+scores,)
    reads = tuple(heads[:2])
    if not layout.engine:
        reads = (*reads, shared_buffer(scores.nbytes))
    forward = (*forward, *(+t for t in writes[:1]), -scores, *(+t for t in writes[1:]))
    d_scores = scores.gradient()
    dq, dk = heads[0].gradient(), heads[1].gradient()
    flops = 2 * b * a * s * s * local.cp * model.head_dim
    tape.append(Op("softmax(Q K^T)", reads, writes[::-1], saves=(*heads[:2], kept),
                   forward=forward, backward=(+d_scores, +dq, +dk, -d_scores),
                   gradients={heads[0]: dq, heads[1]: dk}, product=not layout.engine, flops=flops,
                   backward_flops=2 * flops, equation="M6"))
    if model.attention_dropout:
        probabilities = attention_dropout(tape, probabilities)
    d_dropped, dv = probabilities.gradient(), heads[2].gradient()
    product, y = Tensor("scores V", query.shape, dtype), Tensor("attention", query.shape, dtype)
    tape.append(Op("scores V", (probabilities, heads[2]), (y,), saves=(probabilities, heads[2]),
                   forward=(+product, +y, -product), backward=(+dv, +d_dropped),
                   gradients={heads[2]: dv, probabilities: d_dropped}, flops=flops,
                   backward_flops=2 * flops, equation="M6"))
    return y


def attention_dropout(tape: Tape, probabilities: Tensor) -> Tensor:
    """Keeps a mask of one byte an element, and makes the dropped scores. [M6]"""
    mask = Tensor("dropout mask", probabilities.shape, "bool")
    dropped, dx = probabilities.like("dropped scores"), probabilities.gradient()
    return tape.append(Op("attention dropout", (probabilities,), (dropped, mask), saves=(mask,),
                          forward=(+mask, +dropped), backward=(+dx,), gradients={probabilities: dx},
                          equation="M6"))


def repeated(tape: Tape, layout: Layout, heads: list[Tensor]) -> list[Tensor]:
    """Key and value for every query head: copies, which are kept. [M6]"""
    shape = (layout.tokens, layout.local.num_heads * layout.model.head_dim)
    copies = []
    for head in heads:
        y, dx = Tensor(f"{head.name} repeated", shape, head.dtype), head.gradient()
        copies.append(tape.append(Op("repeat", (head,), (y,), backward=(+dx,), gradients={head: dx},
                                     equation="M6")))
    return copies


def gradients_of(heads: list[Tensor]) -> tuple[dict[Tensor, Gradient], Moves]:
    """New gradients of query, key and value."""
    new = {head: head.gradient() for head in heads}
    return dict(new), tuple(+gradient for gradient in new.values())
