"""Pipeline stages: orders of passes, micro-batches in flight, peaks against whole streams."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from drawn_runs import random_run
from gpuledger.config import Run
from gpuledger.errors import InputError
from gpuledger.estimate import estimate
from gpuledger.memory.frameworks import policy_of
from gpuledger.memory.pipeline.runner import PipelineRunner, stage_order, stage_programs
from gpuledger.memory.pipeline.schedules import SCHEDULES, WEIGHT, Pipeline, in_flight, passes
from gpuledger.memory.pipeline.stage_peak import StagePeak
from gpuledger.memory.pipeline.stages import chunks_of_stage, layers_of_stages, model_parts
from gpuledger.program.device import Device
from meshes import on_mesh, resolved


def test_buffers_that_torch_keeps_are_named() -> None:
    """8 micro-batches of 2 x 1,024 tokens of 768 bf16, half of the tokens on each of two ranks."""
    run = on_mesh(resolved("gpt2", "precision=bf16", "seq_len=1024", "attention=eager", "micro_batch_size=2"),
                  num_microbatches=8, pp=4, tp=2, sequence_parallel=True, model_parallel="torch")
    (line,) = [line for line in estimate(run).assumptions if "pipelining" in line]
    assert "8 received activations and as many gradients of 1,572,864 B" in line
    assert not any("pipelining" in line for line in estimate(on_mesh(run, pp=4, model_parallel="megatron"
                                                                     )).assumptions)


def most_in_flight(schedule: str, pp: int, m: int, chunks: int = 1) -> list[int]:
    """Per stage: micro-batches that wait or run at a time, waiting weight passes included."""
    peaks = []
    for stage in range(pp):
        held = [
            sum(forwarded.values()) + sum(waiting.values()) + (step.kind != WEIGHT)
            for step, forwarded, waiting in in_flight(
                passes(schedule, Pipeline(pp, stage, m, chunks))
            )
        ]
        peaks.append(max(held))
    return peaks


def test_micro_batches_in_flight() -> None:
    assert most_in_flight("gpipe", 4, 9) == [9, 9, 9, 9]
    assert most_in_flight("1f1b", 4, 9) == [4, 3, 2, 1]
    assert most_in_flight("1f1b", 4, 2) == [2, 2, 2, 1]
    assert most_in_flight("interleaved", 4, 8, 2) == [11, 9, 7, 5]
    assert most_in_flight("zb-h1", 4, 9) == [4, 4, 4, 4]
    assert most_in_flight("zb-v", 8, 32) == [16] * 8
    assert most_in_flight("dualpipe", 8, 40) == [9] * 8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_pass_happens_once_and_in_order(schedule: str) -> None:
    chunks = {"interleaved": 3, "zb-v": 2, "dualpipe": 2}.get(schedule, 1)
    for pp, m in ((2, 4), (4, 8), (6, 36)):
        for stage in range(pp):
            order = passes(schedule, Pipeline(pp, stage, m, chunks))
            of_chunk = m // 2 if schedule == "dualpipe" else m
            counts = Counter((step.kind, step.chunk) for step in order)
            assert all(counts[kind, chunk] == of_chunk for kind in "FB" for chunk in range(chunks))
            assert sum(step.kind == WEIGHT for step in order) == sum(step.splits for step in order)
            place = {(s.kind, s.chunk, s.micro_batch): i for i, s in enumerate(order)}
            assert all(
                place["F", c, n] < place["B", c, n] < place.get(("W", c, n), len(order))
                for kind, c, n in place
                if kind == "F"
            )


def test_blocks_of_stages() -> None:
    assert layers_of_stages(96, 8) == (12,) * 8
    assert layers_of_stages(30, 4) == (7, 8, 8, 7)
    assert layers_of_stages(10, 4) == (2, 3, 3, 2)
    assert layers_of_stages(9, 4) == (2, 3, 2, 2)
    run = on_mesh(resolved("gpt2"), pp=2, stage_layers=(5, 7))
    assert [part.num_layers for part in model_parts(run)] == [5, 7]
    with pytest.raises(InputError, match="adds up to 11 blocks, but the model has 12"):
        model_parts(on_mesh(resolved("gpt2"), pp=2, stage_layers=(5, 6)))
    with pytest.raises(InputError, match="6 blocks of a stage cannot be cut into 4 model chunks"):
        model_parts(on_mesh(resolved("gpt2"), pp=2, vpp=4))


def test_chunks_in_a_v_and_from_both_ends() -> None:
    run = resolved("gpt2")
    v = [
        [part.first_layer for part in chunks_of_stage(on_mesh(run, pp=3, schedule="zb-v"), stage)]
        for stage in range(3)
    ]
    assert v == [[0, 10], [2, 8], [4, 6]]
    both = on_mesh(run, 8, pp=4, schedule="dualpipe")
    assert [part.first_layer for part in chunks_of_stage(both, 1)] == [3, 6]


def test_tied_embeddings_are_on_first_and_last_stage() -> None:
    """GPT-2 keeps 50,257 x 768 weights on both; the stages' sum exceeds the model by one copy."""
    run = on_mesh(resolved("gpt2"), 4, pp=4)
    elements = [sum(w.numel for w in StagePeak(run, Device(), stage).weights) for stage in range(4)]
    assert sum(elements) == 124_439_808 + 50_257 * 768
    assert elements[0] - elements[1] == (50_257 + 1_024) * 768


def drawn_pipeline(seed: int) -> Run:
    """A random run on a random pipeline."""
    rng = random.Random(seed)
    schedule = rng.choice(list(SCHEDULES))
    pp, m = rng.choice([2, 3, 4]), rng.choice([1, 2, 4, 7, 12])
    if schedule == "dualpipe":
        pp = rng.choice([2, 4])
        m = 2 * pp + 2 * rng.randint(0, 3)
    run = random_run(seed, model__num_layers=pp * 2 * rng.choice([1, 2, 3, 4]),
                     training__offload="none")              # refused with pipeline stages
    return on_mesh(run, m, pp=pp, schedule=schedule, vpp=2 if schedule == "interleaved" else 1)


@pytest.mark.parametrize("seed", range(24))
def test_closed_form_is_the_streams_peak(seed: int) -> None:
    """One walk of each pass and the schedule, against all micro-batches and layers of the step."""
    run = drawn_pipeline(seed)
    training, stage = run.training, seed % run.parallel.pp
    finder = StagePeak(run, Device(), stage)
    peak = finder.find()
    runner = PipelineRunner(
        stage_programs(run, Device(), stage),
        training,
        stage_order(run, stage),
        (),
        policy_of(run.parallel),
    )
    if not training.set_to_none:
        for timeline in runner.timelines:
            timeline.earlier_gradients(kept=True)
    runner.step()
    level = highest = 0
    for sign, _, nbytes in runner.memory.events:
        level += sign * nbytes
        highest = max(highest, level)
    assert peak.requested_bytes == highest + finder.states_bytes
    assert sum(entry.nbytes for entry in (*peak.states, *peak.live)) == peak.requested_bytes


def test_worst_stage_is_the_answer() -> None:
    """The last stage of GPT-2 with its head; the first holds most micro-batches."""
    account = estimate(on_mesh(resolved("gpt2", "precision=bf16"), 8, pp=4))
    peaks = [memory.peak_requested_bytes for memory in account.by_stage]
    assert account.memory is account.by_stage[peaks.index(max(peaks))]
    assert [memory.stage for memory in account.by_stage] == [0, 1, 2, 3]
    assert all(sum(m.category_bytes.values()) == m.peak_allocated_bytes for m in account.by_stage)


def test_replay_of_the_worst_stage() -> None:
    account = estimate(on_mesh(resolved("gpt2", "precision=bf16"), 16, pp=4), replay=True)
    memory = account.memory
    assert memory.peak_reserved_bytes >= memory.peak_allocated_bytes >= memory.peak_requested_bytes
    assert sum(stage.peak_reserved_bytes is not None for stage in account.by_stage) == 1
