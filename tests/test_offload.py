"""Inputs of recomputed blocks on the host: what leaves the GPU, what comes back, what the host holds."""

from __future__ import annotations

import pytest

from gpuledger.config import Run
from gpuledger.errors import InputError, NotYetError
from gpuledger.estimate import estimate
from gpuledger.memory.timeline import Timeline
from gpuledger.program.device import Device
from gpuledger.program.model import build
from meshes import on_mesh, resolved

B, S, H, LAYERS = 2, 1024, 2048, 16                     # Llama 3.2 1B
INPUT_BYTES = 2 * B * S * H


def llama(*settings: str) -> Run:
    return resolved("llama-3.2-1b", "precision=bf16", "attention=flash", f"seq_len={S}",
                    f"micro_batch_size={B}", "loss=chunked", "recompute=full", *settings)


def kept_in_block(run: Run) -> int:
    """Bytes that one block more leaves behind at the end of the forward pass."""
    levels: list[int] = []
    for num_layers in (2, 3):
        timeline = Timeline(build(run.model, run.training, Device(), num_layers=num_layers))
        timeline.forward_pass()
        levels.append(sum(sign * nbytes for sign, _, nbytes in timeline.memory.events))
    return levels[1] - levels[0]


def test_a_blocks_input_leaves() -> None:
    assert kept_in_block(llama()) == INPUT_BYTES
    assert kept_in_block(llama("offload=block_inputs")) == 0


def test_one_comes_back_at_a_time() -> None:
    """Each block's input is allocated again when the block is run again, and no two live at once."""
    run = llama("offload=block_inputs")
    timeline = Timeline(build(run.model, run.training, Device(), num_layers=4))
    timeline.micro_batch()
    memory = timeline.memory
    back = {n for n, tensor in enumerate(memory.tensors) if tensor.name.endswith("from the host")}
    assert len(back) == 4 and {memory.sizes[n] for n in back} == {INPUT_BYTES}
    alive = most = 0
    for sign, number, _ in memory.events:
        alive += sign * (number in back)
        most = max(most, alive)
    assert most == 1


def test_what_the_host_holds() -> None:
    assert estimate(llama()).memory.host.rank_bytes == 0
    assert estimate(llama("offload=block_inputs")).memory.host.pinned_bytes == LAYERS * INPUT_BYTES
    half = estimate(llama("offload=block_inputs", "recompute=every:2")).memory.host
    assert half.pinned_bytes == LAYERS // 2 * INPUT_BYTES


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="offload: block_inputs"):
        llama("offload=block_inputs", "recompute=none")
    with pytest.raises(NotYetError, match="with pipeline stages"):
        estimate(on_mesh(llama("offload=block_inputs"), num_microbatches=4, pp=2))
