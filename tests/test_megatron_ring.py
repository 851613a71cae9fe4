"""Keys and values that travel round Transformer Engine's ring, in bytes of one layer."""

from __future__ import annotations

import pytest

from gpuledger.errors import InputError
from gpuledger.estimate import estimate
from gpuledger.program.local import Local
from gpuledger.program.megatron.linears import Layout
from gpuledger.program.megatron.ring import backward, forward
from gpuledger.program.program import Moves
from gpuledger.program.tensor import Tensor
from megatron_runs import megatron_run

CP, TOKENS, WIDTH, HEADS = 4, 16, 128, 8      # 64 tokens in four parts
QUERY, BLOCK, LSE, STATE = 2 * TOKENS * WIDTH, 4 * TOKENS * WIDTH, 4 * HEADS * TOKENS, 16


def layout(rank: int) -> Layout:
    """Of one context-parallel rank."""
    run = megatron_run(cp=CP, cp_rank=rank, model={"attention_dropout": 0.0})
    return Layout(run.model, Local.of_rank(run.model, run.training, run.parallel), run.parallel.megatron)


def peak_and_rest(moves: Moves) -> tuple[int, int]:
    """Most bytes on the way, and those that stay."""
    live = most = 0
    for move in moves:
        live += move.sign * int(move.tensor.nbytes)
        most = max(most, live)
    return most, live


def head(name: str) -> Tensor:
    return Tensor(name, (TOKENS, WIDTH), "bfloat16")


LOGSUMEXP = Tensor("logsumexp", (1, HEADS, TOKENS), "float32")


@pytest.mark.parametrize(("rank", "halves"), [(0, 3), (1, 2), (3, 0)])
def test_forward_holds_all_rounds(rank: int, halves: int) -> None:
    """Every block and output until it returns; of later ranks' rounds half an output."""
    block = Tensor("block", (2 * TOKENS * WIDTH,), "bfloat16")
    states = tuple(Tensor("state", (2,), "int64") for _ in range(CP))
    moves = forward(layout(rank), head("query"), head("y"), LOGSUMEXP, block, states)
    kept = QUERY + LSE + BLOCK + CP * STATE
    outputs = (2 * CP - halves) * (QUERY + LSE) // 2
    assert peak_and_rest(moves) == ((CP - 1) * BLOCK + outputs + kept, kept)


def test_backward_sends_blocks_with_their_gradients() -> None:
    """Two buffers of a block and its gradients, beside a round's gradients and the kernel's fp32 sums."""
    flat = Tensor("flat", (4 * TOKENS * WIDTH,), "bfloat16")
    heads = [head("query"), head("key"), head("value")]
    moves = backward(layout(CP - 1), heads, LOGSUMEXP, head("dq"), flat)
    buffers = QUERY + 2 * 2 * BLOCK
    assert peak_and_rest(moves) == (buffers + QUERY + BLOCK + 2 * QUERY, QUERY + 2 * BLOCK)


def test_the_last_rank_is_the_default() -> None:
    whole = estimate(megatron_run(cp=CP, model={"attention_dropout": 0.0}))
    last = estimate(megatron_run(cp=CP, cp_rank=CP - 1, model={"attention_dropout": 0.0}))
    assert whole.memory.peak_requested_bytes == last.memory.peak_requested_bytes


def test_gathered_keys_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="context_exchange: all-gather"):
        estimate(megatron_run(cp=CP, context_exchange="all-gather"))
