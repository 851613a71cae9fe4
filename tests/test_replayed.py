"""The stream that the allocator model replays: what repeats is walked and played once."""
from __future__ import annotations

import pytest

from drawn_runs import random_run, with_settings
from gpuledger.config import Run, RunOptions, load_gpu, resolve_run
from gpuledger.estimate import device_of
from gpuledger.memory.allocator import AllocatorSettings, OutOfMemory, replay
from gpuledger.memory.allocator.repetition import expanded, replay_parts
from gpuledger.memory.replayed import STEPS, _parts
from gpuledger.memory.run import rank_programs, whole_run
from gpuledger.torch_runs.self_check.framework_draw import DRAWS, draw_many
from megatron_runs import drawn_megatron_run

SETTINGS = (
    AllocatorSettings(),
    AllocatorSettings(expandable_segments=True),
    AllocatorSettings(garbage_collection_threshold=0.8, per_process_memory_fraction=0.97))


def sizes(events) -> list[tuple[int, int]]:
    return [(sign, nbytes) for sign, _, nbytes in events]


def outcome(play, *arguments, **options) -> object:
    try:
        return play(*arguments, **options).memory_stats()
    except OutOfMemory as error:
        return error.figures


def abridged_as_walked(run: Run, limits: tuple[float, ...] = (0.97, 0.85)) -> bool:
    """The whole stream and every statistic, without a limit and below what is needed; whether anything
    was left out."""
    device = device_of(run)
    walked = whole_run(run, rank_programs(run, device), STEPS).memory
    runner = whole_run(run, rank_programs(run, device), 1, abridged=True)
    parts, streams = _parts(runner), runner.memory.streams
    assert sizes(expanded(parts)) == sizes(walked.events)
    need = replay(walked.events, streams=walked.streams).memory_stats()["reserved_bytes.all.peak"]
    for total in (None, *(int(need * limit) for limit in limits)):
        for settings in SETTINGS:
            assert outcome(replay_parts, parts, settings, total, streams=streams) == outcome(
                replay, walked.events, settings, total, streams=walked.streams)
    return bool(runner.repetitions and runner.repetitions.stretches)


def with_micro_batches(run: Run, count: int) -> Run:
    batch = run.training.micro_batch_size * run.parallel.dp * count
    return with_settings(run, training__global_batch_size=batch,
                         cluster__gpu=load_gpu("h100-80gb-sxm").model_dump())


@pytest.mark.parametrize("settings", [
    (), ("optimizer=adafactor", "gradient_clipping=true"), ("precision=fp16-mixed", "loss=chunked"),
    ("set_to_none=false", "global_batch_size=16"), ("recompute=full", "optimizer=muon")])
def test_a_step_that_is_repeated_is_what_walking_it_again_gives(settings):
    options = RunOptions(gpu="h100", gpus=1, seq_len=128, set=("model.num_layers=2", *settings))
    abridged_as_walked(resolve_run("gpt2", options)[0])


@pytest.mark.parametrize("seed", range(8))
def test_micro_batches_that_repeat_are_walked_once(seed):
    assert abridged_as_walked(with_micro_batches(random_run(seed), 4 + seed % 4))


@pytest.mark.parametrize("framework", DRAWS)
def test_micro_batches_of_frameworks_that_repeat_are_walked_once(framework):
    shortened = [abridged_as_walked(with_micro_batches(run, 4 + seed % 3), limits=(0.9,))
                 for seed, run, _ in draw_many(framework, range(100, 105))]
    assert any(shortened)


@pytest.mark.parametrize("seed", range(6))
def test_steps_of_megatron_that_repeat_are_walked_once(seed):
    abridged_as_walked(drawn_megatron_run(seed), limits=(0.9,))


def test_many_micro_batches_cost_what_a_few_do():
    options = RunOptions(gpu="h100", gpus=1, seq_len=128, set=("model.num_layers=2",))
    few, many = (with_micro_batches(resolve_run("gpt2", options)[0], count) for count in (8, 512))
    walked = [len(whole_run(run, rank_programs(run, device_of(run)), 1, abridged=True).memory.events)
              for run in (few, many)]
    assert walked[0] == walked[1]
