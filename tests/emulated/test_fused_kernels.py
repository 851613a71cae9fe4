"""Training by gpuledger's fused kernels on the emulated GPU, byte for byte as the engine says.

The kernels' launches do nothing there; the binding checks and allocates as on a GPU.
"""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from emulated_devices import A100_80GB, H100_80GB
from programs.fused_part_records import LOSSES, records
from test_engine_streams import self_check

from gpuledger.memory.timeline import Timeline
from gpuledger.program.device import Device
from gpuledger.program.model import Program, Stage, build
from gpuledger.torch_runs.self_check.compare import peak_and_end

PROGRAM = Path(__file__).parent / "programs" / "fused_parts.py"
BLOCK, HEAD = Stage(0, 1, embedding=False, head=False), Stage(0, 0, embedding=False)
WHOLE_RUNS = 4
WEIGHT_GRADIENT_BYTES = 2 * 128_256 * 4096


@pytest.mark.parametrize("device, seed, count", [(H100_80GB, 7001, 24), (A100_80GB, 7002, 8)])
def test_streams_of_steady_steps(emulated, device, seed, count):
    summary = self_check(emulated, device, seed, count, "--kernels", "fused")
    assert (summary["cases"], summary["equal"]) == (count, count)


def test_whole_runs_from_an_empty_allocator(emulated):
    summary = self_check(emulated, H100_80GB, 7003, WHOLE_RUNS, "--whole", "--kernels", "fused")
    assert (summary["cases"], summary["equal"]) == (WHOLE_RUNS, WHOLE_RUNS)


def test_flops_are_those_that_pytorch_counts(emulated):
    pairs = emulated.run(PROGRAM.with_name("fused_flops.py"), "7004", "8")
    assert len(pairs) == 8
    assert all(counted == estimated > 0 for counted, estimated in pairs), pairs


@pytest.fixture(scope="module")
def measured(emulated):
    return emulated.run(PROGRAM)


def accounted(kernels: str, loss: str, stage: Stage) -> list[int]:
    """(saved bytes, peak bytes) of the part alone; its input and parameters are not counted."""
    model, training = records(kernels, loss)
    program = replace(build(model, training, Device((9, 0), 132), stage=stage), sends=False)
    timeline = Timeline(program)
    timeline.micro_batch()
    received_bytes = program.received.nbytes
    return [saved_bytes(program), peak_and_end(timeline.memory.events)[0] - received_bytes]


def saved_bytes(program: Program) -> int:
    saved = {t.storage for op in program.root.ops() if op.gradients for t in op.saves}
    return sum(t.nbytes for t in saved
               if t is not program.received and t.role not in ("parameter", "table"))


@pytest.mark.parametrize("kernels", ("torch", "fused"))
def test_a_llama_block(measured, kernels):
    assert measured[f"block {kernels}"] == accounted(kernels, "cross_entropy", BLOCK)


@pytest.mark.parametrize("name", LOSSES)
def test_the_head_of_llama_3_8b(measured, name):
    assert measured[name] == accounted(*LOSSES[name], HEAD)


def test_what_a_llama_block_saves():
    """Neither silu(gate) nor its product with up: backward forms the product again."""
    torch, fused = (accounted(kernels, "cross_entropy", BLOCK)[0] for kernels in ("torch", "fused"))
    tokens, ffn = 8192, 14_336
    assert torch - fused == 2 * (2 * tokens * ffn)


def test_the_chunked_loss_needs_at_most_a_tenth(measured):
    """Of the eager loss over fp32 logits, the weight's gradient included; without it, also of the
    loss over bf16 logits."""
    chunked = measured["head linear"][1]
    assert 10 * chunked <= measured["head torch fp32"][1]
    assert 10 * (chunked - WEIGHT_GRADIENT_BYTES) <= measured["head torch"][1]
