"""Checkpoint per operator: what a block keeps, and what it runs again, by hand."""

from __future__ import annotations

import pytest

from gpuledger.compute.sequence_flops import second_products
from gpuledger.config import Run
from gpuledger.errors import InputError, NotYetError
from gpuledger.estimate import count_flops, estimate
from gpuledger.memory.timeline import Timeline
from gpuledger.program.device import Device
from gpuledger.program.measures import recomputed_flops
from gpuledger.program.model import build
from meshes import on_mesh, resolved

B, S, H, A, KV, D, F = 2, 1024, 2048, 32, 8, 64, 8192       # Llama 3.2 1B
T = B * S


def llama(recompute: str, *settings: str) -> Run:
    return resolved("llama-3.2-1b", "precision=bf16", "attention=flash", f"seq_len={S}",
                    f"micro_batch_size={B}", "loss=chunked", f"recompute={recompute}", *settings)


def kept_in_block(run: Run) -> int:
    """Bytes that one block more leaves behind at the end of the forward pass."""
    levels = []
    for num_layers in (2, 3):
        timeline = Timeline(build(run.model, run.training, Device(), num_layers=num_layers))
        timeline.forward_pass()
        levels.append(sum(sign * nbytes for sign, _, nbytes in timeline.memory.events))
    kept: int = levels[1] - levels[0]
    return kept


def test_what_a_block_keeps() -> None:
    """Its input; of seven products the first, third, fifth and seventh (query, value, gate, down);
    attention's output with logsumexp and 24 bytes of random state."""
    products = 2 * T * (A * D + KV * D + F + H)
    attention = 2 * T * A * D + 4 * B * A * S + 24
    assert kept_in_block(llama("per_op")) == 2 * T * H + products + attention
    assert kept_in_block(llama("full")) == 2 * T * H


def test_what_runs_again() -> None:
    """Key, out and up; not attention."""
    run = llama("per_op")
    assert second_products(run.model) == 2 * (H * KV * D + A * D * H + H * F)
    program = build(run.model, run.training, Device(), num_layers=1)
    block = program.root.find("block 0")
    flops = recomputed_flops(program.root) - recomputed_flops(program.root.find("head"))
    assert flops == T * second_products(run.model)
    assert {op.name for op in block.kept_ops()} == {"query", "value", "gate", "down", "flash"}
    extra = (count_flops(run, "megatron").hardware_flops_per_step
             - count_flops(run, "megatron").model_flops_per_step)
    assert extra == run.training.global_batch_size * run.model.num_layers * S * second_products(run.model)


def test_between_full_and_none() -> None:
    settings = ("optimizer=sgd", "micro_batch_size=16", "global_batch_size=16")
    peaks = [estimate(llama(word, *settings)).memory.peak_allocated_bytes
             for word in ("full", "per_op", "none")]
    assert peaks == sorted(peaks) and len(set(peaks)) == 3


def test_biases_are_always_kept() -> None:
    """A product with a bias is an addmm, of which none is run again."""
    run = resolved("gpt2", "precision=bf16", "attention=flash", "seq_len=512", "micro_batch_size=1",
                   "recompute=per_op")
    assert second_products(run.model) == 0
    block = build(run.model, run.training, Device(), num_layers=1).root.find("block 0")
    assert {op.name for op in block.kept_ops()} == {"qkv", "flash", "attention out", "up", "down"}


def test_what_is_refused() -> None:
    with pytest.raises(NotYetError, match="attention: math"):
        estimate(llama("per_op", "attention=math"))
    with pytest.raises(NotYetError, match="framework: deepspeed"):
        estimate(on_mesh(llama("per_op", "precision=bf16-master"), dp=8, framework="deepspeed", zero_stage=1))
    with pytest.raises(InputError, match="kernels: fused"):
        llama("per_op", "kernels=fused")
