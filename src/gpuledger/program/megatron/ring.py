"""Context parallelism of Transformer Engine: keys and values travel round a ring (cp_comm_type p2p).

A rank has two pieces of each sequence. All blocks of keys and values that have passed by stay until the
function returns, and so do the outputs of all rounds; backward sends keys, values and their gradients in
two buffers of twice their size. Kept are the queries, the block that came last, output, logsumexp and a
random state per round. Ref: TransformerEngine d0067d0d
pytorch/attention/dot_product_attention/context_parallel.py (AttnFuncWithCPAndKVP2P).
"""

from __future__ import annotations

from ..frame import Frame
from ..program import Moves, Op, Tape
from ..sizes import Size
from ..tensor import Tensor
from .linears import Layout


def ring(tape: Tape, layout: Layout, backend: str, heads: list[Tensor]) -> Tensor:
    """(tokens, a d / tp) of query, key and value -> the same of the output. [M31]"""
    query, key, value = heads
    local = layout.local
    b, a, s, cp = local.micro_batch_size, local.num_heads, local.seq_len, local.cp
    y, lse = Tensor("attention", query.shape, query.dtype), Tensor("logsumexp", (b, a, s), "float32")
    states = tuple(Tensor("rng state", (2,), "int64") for _ in range(cp))
    block = Tensor("keys, values of another rank", (key.numel + value.numel,), key.dtype)
    flat = Tensor("d(key), d(value) and a block", (2 * block.numel,), key.dtype)
    dq = query.gradient()
    gradients = {query: dq, key: flat.view("d(key)", key.shape), value: flat.view("d(value)", value.shape)}
    flops = 4 * b * a * s * s * cp * layout.model.head_dim
    return tape.append(Op(
        f"{backend} ring", tuple(heads), (y, lse, block, *states), saves=(query, block, y, lse, *states),
        forward=forward(layout, query, y, lse, block, states),
        backward=backward(layout, heads, lse, dq, flat), gradients=dict(gradients), shares=(flat,),
        flops=flops, backward_flops=flops * 5 // 2, equation="M31"))


def forward(layout: Layout, query: Tensor, y: Tensor, lse: Tensor, block: Tensor,
            states: tuple[Tensor, ...]) -> Moves:
    """Every round's block, output, logsumexp and random state, then the merged ones."""
    frame, cp = Frame(), layout.local.cp
    blocks = [*(block.like(f"block {i}") for i in range(cp - 1)), block]
    frame.bind(**{"block 0": frame.make(blocks[0])})
    for i in range(cp):
        if i < cp - 1:
            frame.bind(**{f"block {i + 1}": frame.make(blocks[i + 1])})
        parts = 2 if i > layout.local.cp_rank else 1
        frame.bind(**{
            f"output {i}": frame.make(scaled("output of a round", query, parts)),
            f"logsumexp {i}": frame.make(scaled("logsumexp of a round", lse, parts)),
            f"state {i}": frame.make(states[i])})
        if i == 1:
            frame.bind(lse=frame.make(lse))
    frame.bind(out=frame.make(y))
    return frame.finish(y, lse, block, *states)


def backward(layout: Layout, heads: list[Tensor], lse: Tensor, dq: Tensor, flat: Tensor) -> Moves:
    """Gradients of each round beside the sums; `flat` is the buffer that was received last."""
    query, key, value = heads
    frame, cp, rank = Frame(), layout.local.cp, layout.local.cp_rank
    if rank < cp - 1:
        frame.bind(half=frame.make(scaled("logsumexp of the second piece", lse, 2)))
    frame.bind(dq=frame.make(dq))
    other = flat.like("block and its gradients")
    first, second = (flat, other) if cp % 2 == 0 else (other, flat)
    frame.bind(first=frame.make(first))
    frame.bind(second=frame.make(second))
    for i in range(cp):
        frame.unbind("dq_", "dk_", "dv_")
        queries, keys = parts_of_round(i, cp, rank)
        made = {"dq_": frame.make(scaled("d(query) of a round", query, queries)),
                "dk_": frame.make(scaled("d(key) of a round", key, keys)),
                "dv_": frame.make(scaled("d(value) of a round", value, keys))}
        sums = frame.make(Tensor("dQ accumulator", (query.numel // queries,), "float32", "scratch"))
        frame.discard(sums)
        frame.bind(**made)
    return frame.finish(dq, flat)


def parts_of_round(i: int, cp: int, rank: int) -> tuple[int, int]:
    """Of how many parts one takes part in round i of backward, of queries and of keys: the last round is
    the rank's own block; of earlier ranks' keys the first half, of later ranks' queries the second."""
    if i == cp - 1:
        return 1, 1
    return (1, 2) if i >= cp - rank - 1 else (2, 1)


def scaled(name: str, x: Tensor, parts: Size) -> Tensor:
    """A tensor of a part of x's elements."""
    return Tensor(name, (x.numel // parts,), x.dtype)
