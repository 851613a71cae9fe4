"""Sequences divided over ranks: what ring attention keeps and sends, by hand, and who needs most."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.config import Run
from gpuledger.errors import NotYetError
from gpuledger.estimate import device_of, estimate
from gpuledger.memory.context import at_rank
from gpuledger.memory.peak import StepPeak
from gpuledger.program.attention_kernels import Core
from gpuledger.program.device import Device
from gpuledger.program.layout import transposed
from gpuledger.program.local import Local
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.program import Moves, Op, Tape
from gpuledger.program.ring_attention import ring_attention
from gpuledger.program.tensor import Tensor
from meshes import on_mesh, resolved

B, A, S, D = 2, 4, 512, 64                     # of one rank
N = 2 * B * A * S * D                          # bytes of its queries in bf16


def ring(cp: int, cp_rank: int, exchange: str) -> tuple[Op, Tensor]:
    """The operator of one rank's attention and its queries, which lie as a projection leaves them."""
    tape = Tape(PRECISIONS["bf16"], Device((9, 0), 132))
    strides = transposed((B, S, A, D), None, 1, 2)[1]
    heads = tuple(Tensor(name, (B, A, S, D), "bfloat16", strides=strides)
                  for name in ("query", "key", "value"))
    local = Local(B, S, A, A, 4, 4, cp=cp, cp_exchange=exchange, cp_rank=cp_rank)
    ring_attention(tape, Core("flash", False, False, False, None, False), local, heads)
    return next(op for op in tape.root.ops() if op.name.startswith("ring")), heads[0]


def highest(moves: Moves) -> int:
    level = peak = 0
    for move in moves:
        level += move.sign * move.tensor.nbytes
        peak = max(peak, level)
    return peak


def left(moves: Moves) -> int:
    return sum(move.sign * move.tensor.nbytes for move in moves)


@pytest.mark.parametrize("cp_rank", range(4))
def test_what_is_kept_for_backward(cp_rank: int) -> None:
    """Q, K, V from outside; the merged output in bf16, one fp32 logsumexp, 24 bytes of random state."""
    op, _ = ring(4, cp_rank, "ring")
    assert left(op.forward_moves) == N + 4 * B * A * S + 24
    assert {t.name for t in op.saves[:3]} == {"query", "key", "value"}
    backward = op.backward(None) if callable(op.backward) else op.backward
    assert left(backward) == 3 * N                      # d(query), and d(key) with d(value)


def test_blocks_in_flight() -> None:
    """A ring has at most what it sends and what it receives; an all-gather has every rank's block."""
    for exchange, received in (("ring", 2 * N), ("all-gather", 4 * 2 * N)):
        op, _ = ring(4, 1, exchange)
        sizes = {m.tensor.nbytes for m in op.forward_moves if "keys, values" in m.tensor.name}
        assert sizes == {2 * N, received}
    difference = highest(ring(4, 1, "all-gather")[0].forward_moves) - highest(
        ring(4, 1, "ring")[0].forward_moves)
    assert difference == 4 * 2 * N - 2 * 2 * N          # the ring's peak has two received blocks


def test_gradients_travel_in_fp32() -> None:
    """d(query), d(key), d(value) are summed in fp32; the travelling block is 2 x 2 N each way."""
    op, _ = ring(2, 1, "ring")
    assert callable(op.backward)
    moves = op.backward(transposed((B, S, A, D), None, 1, 2)[1])
    assert [m.tensor.nbytes for m in moves[:3]] == [2 * N] * 3
    assert {m.tensor.nbytes for m in moves if "sent d(key)" in m.tensor.name} == {4 * N}


def llama(**axes: Any) -> Run:
    run = resolved("llama-3.2-1b", "precision=bf16-mixed", "attention=flash", "seq_len=8192",
                   "micro_batch_size=1", "recompute=full", "loss=cross_entropy")
    return on_mesh(run, model_parallel="torch", **axes)


@pytest.mark.parametrize("cp", (2, 4))
def test_the_rank_that_needs_most(cp: int) -> None:
    """Long sequences and a loss in pieces: the peak is in attention, where ranks differ."""
    long = resolved("llama-3.2-1b", "precision=bf16-mixed", "attention=flash", "seq_len=131072",
                    "micro_batch_size=1", "recompute=full", "loss=chunked", "loss_chunks=64", "optimizer=sgd")
    run = on_mesh(long, cp=cp, model_parallel="torch")
    peaks = [StepPeak(at_rank(run, rank), device_of(run)).find().requested_bytes for rank in range(cp)]
    assert estimate(run).memory.peak_requested_bytes == max(peaks)
    assert len(set(peaks)) > 1


def test_fsdp2_divides_over_dp_and_cp() -> None:
    divided = llama(dp=2, cp=2, framework="fsdp2", zero_stage=3)
    alone = llama(dp=4, framework="fsdp2", zero_stage=3)
    for category in ("parameters", "optimizer"):
        assert (estimate(divided).memory.category_bytes[category]
                == estimate(alone).memory.category_bytes[category])


def test_with_tensor_and_pipeline_parallelism() -> None:
    """A rank's part of the sequence is divided again by sequence parallelism."""
    whole = estimate(llama(cp=2, tp=2, sequence_parallel=True)).memory
    assert estimate(llama(cp=4, tp=2, sequence_parallel=True)).memory.peak_allocated_bytes \
        < whole.peak_allocated_bytes
    run = resolved("llama-3.2-1b", "precision=bf16-mixed", "attention=flash", "seq_len=8192",
                   "micro_batch_size=1", "recompute=none", "loss=cross_entropy")
    stages = estimate(on_mesh(run, num_microbatches=4, cp=2, pp=2)).by_stage
    assert len(stages) == 2


@pytest.mark.parametrize(("setting", "said"), (
    ("attention=eager", "attention: eager over cp"), ("seq_len=8194", "2 cp = 4 pieces"),
    ("attention=efficient", "tokens is no multiple of 32"), ("model.sliding_window=100", "sliding_window"),
))
def test_what_is_refused(setting: str, said: str) -> None:
    settings = ["precision=bf16-mixed", "attention=flash", "seq_len=8196", "micro_batch_size=1",
                "recompute=full", "loss=cross_entropy", setting]
    run = on_mesh(resolved("llama-3.2-1b", *settings), cp=2, model_parallel="torch")
    with pytest.raises(NotYetError, match=said):
        estimate(run)


class Forgets(dict[object, Any]):
    """Every layer writes its own script."""

    def __contains__(self, key: object) -> bool:
        return False


def names_and_events(run: Run, cp_rank: int) -> list[tuple[object, ...]]:
    """A micro-batch: what is allocated and freed, with all that is known of it."""
    memory = StepPeak(at_rank(run, cp_rank), device_of(run))._walk().memory
    return [(sign, nbytes, memory.tensors[n].name, memory.tensors[n].shape, memory.categories[n],
             memory.layers[n], memory.equations[n]) for sign, n, nbytes in memory.events]


@pytest.mark.parametrize("attention", ("flash", "efficient"))
@pytest.mark.parametrize("settings", (
    ("recompute=none", "precision=bf16"), ("recompute=full", "precision=bf16-mixed"),
    ("recompute=none", "precision=fp16-mixed", "model.dropout=0.1", "loss=chunked")))
def test_layers_that_share_a_script_allocate_what_each_would(
    attention: str, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = on_mesh(resolved("llama-3.2-1b", f"attention={attention}", "seq_len=1024",
                           "micro_batch_size=2", *settings), cp=4, model_parallel="torch")
    shared = [names_and_events(run, rank) for rank in range(4)]
    build = Tape.__init__

    def forgetful(tape: Tape, *arguments: Any) -> None:
        build(tape, *arguments)
        tape.scripts = Forgets()

    monkeypatch.setattr(Tape, "__init__", forgetful)
    assert [names_and_events(run, rank) for rank in range(4)] == shared
    assert any(name == "keys, values" for _, _, name, *_ in shared[0])
