"""torch.nn.DataParallel's first GPU, by hand; its streams are compared by self_check.frameworks."""
from __future__ import annotations

import pytest

from gpuledger.config import Run, RunOptions, resolve_run
from gpuledger.errors import NotYetError
from gpuledger.estimate import estimate
from gpuledger.memory.frameworks.data_parallel import BUFFER_BYTES, taken, taken_whole
from gpuledger.memory.peak import StepPeak
from gpuledger.memory.run import steady_step
from gpuledger.program.device import Device
from gpuledger.program.tensor import Tensor

GPT2_PARAMETERS = 124_439_808
MIB = 2**20


def resolved(*keys: str, gpus: int = 4) -> Run:
    return resolve_run("gpt2", RunOptions(gpu="h100", gpus=gpus, global_batch=gpus, set=(
        "framework=dataparallel", "precision=bf16", "seq_len=64", *keys)))[0]


def of_mib(*sizes: int) -> list[Tensor]:
    return [Tensor(f"w{i}", (size * MIB // 2,), "bfloat16") for i, size in enumerate(sizes)]


def test_chunks_by_hand() -> None:
    """The broadcast closes a chunk when it reaches 10 MiB, the reduction before it would exceed them."""
    assert BUFFER_BYTES == 10 * MIB
    weights = of_mib(4, 4, 4, 20, 1)
    assert [len(chunk) for chunk in taken(weights)] == [3, 1, 1]
    assert [len(chunk) for chunk in taken_whole(weights)] == [2, 1, 1, 1]


def test_gradients_are_there_twice() -> None:
    """At the end of the backward pass: the replica's gradients, and the sums over all GPUs."""
    finder = StepPeak(resolved(), Device())
    runner = steady_step(finder.program, finder.training, 1, finder.policy)
    live = highest = 0
    for sign, number, nbytes in runner.memory.events:
        if runner.memory.categories[number] == "gradients":
            live += sign * nbytes
            highest = max(highest, live)
    assert highest == 2 * 2 * GPT2_PARAMETERS


def test_the_first_gpu_gathers_the_logits_of_all() -> None:
    """N times (b, s, v) of bf16 beside the replica's own, and the batch of all."""
    kept, batch = {}, {}
    for gpus in (2, 8):
        finder = StepPeak(resolved("keep_logits=true", gpus=gpus), Device())
        runner = steady_step(finder.program, finder.training, 1, finder.policy)
        assert finder.program.logits is not None
        name = f"gathered {finder.program.logits.name}"
        kept[gpus] = [t.nbytes for t in runner.memory.tensors if t.name == name]
        batch[gpus] = next(s.nbytes for s in finder.states if s.name == "batch of the other GPUs")
    assert kept == {gpus: [gpus * 64 * 50257 * 2] for gpus in (2, 8)}
    assert batch == {gpus: 2 * (gpus - 1) * 64 * 8 for gpus in (2, 8)}


def test_one_gpu_is_the_model_alone() -> None:
    alone = resolve_run("gpt2", RunOptions(gpu="h100", gpus=1, global_batch=1, set=(
        "precision=bf16", "seq_len=64")))[0]
    peaks = [StepPeak(run, Device()).find().requested_bytes for run in (alone, resolved(gpus=1))]
    assert peaks[0] == peaks[1]


def test_the_first_gpu_needs_more_with_every_gpu() -> None:
    peaks = [estimate(resolved("keep_logits=true", gpus=gpus)).memory.peak_requested_bytes
             for gpus in (1, 2, 4, 8)]
    assert peaks == sorted(set(peaks))


@pytest.mark.parametrize("keys", [["precision=bf16-mixed"], ["optimizer=adafactor"],
                                  ["cluster.gpus_per_node=2"]])
def test_what_has_no_account_is_refused(keys: list[str]) -> None:
    run = resolved(*keys)
    with pytest.raises(NotYetError, match="DataParallel"):
        estimate(run)
