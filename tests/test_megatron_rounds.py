"""Rounds of Megatron's schedule that repeat are left out: peak and account are those of all of them."""
from __future__ import annotations

import random

import pytest

from gpuledger.config import Run
from gpuledger.config.problems import validated
from gpuledger.estimate import device_of
from gpuledger.memory.frameworks.megatron import rounds
from gpuledger.memory.peak import Peak
from gpuledger.memory.pipeline.finders import finders
from gpuledger.memory.pipeline.runner import stage_order
from megatron_runs import drawn_megatron_run, megatron_run

NOTHING_DEFERRED = {"defer_embedding_wgrad_compute": False, "wgrad_deferral_limit": 0,
                    "keeps_deferred_gradient": False}


def drawn(seed: int) -> Run:
    """A random run of many micro-batches, in groups of any size, of which some keep every batch."""
    run, rng = drawn_megatron_run(seed), random.Random(seed)
    keys, pp = run.model_dump(), run.parallel.pp
    keys["parallel"]["megatron"] |= NOTHING_DEFERRED | {"keeps_batches": rng.random() < 0.4}
    if run.parallel.vpp > 1:
        keys["parallel"]["megatron"]["microbatch_group_size"] = rng.choice([pp, pp + 1, 2 * pp + 1])
    count = rng.choice([10, 15, 20, 30]) * pp
    keys["training"]["global_batch_size"] = (
        count * run.training.micro_batch_size * run.parallel.dp)
    return validated(Run, keys)


def peaks(run: Run) -> list[Peak]:
    return [finder.find() for finder in finders(run, device_of(run))]


@pytest.mark.parametrize("first", range(0, 48, 8))
def test_peaks_are_those_of_all_rounds(first, monkeypatch):
    walks = []
    monkeypatch.setattr(rounds, "_walk", lambda *a, walk=rounds._walk: (walks.append(a[3]), walk(*a))[1])
    runs = [drawn(seed) for seed in range(first, first + 8)]
    short = [peaks(run) for run in runs]
    assert sum(walks) < sum(run.num_microbatches * run.parallel.pp for run in runs)
    monkeypatch.setattr(rounds, "_rounds", lambda run, group: run.num_microbatches)
    assert [peaks(run) for run in runs] == short


def test_rounds_that_are_not_alike_are_all_walked():
    run = megatron_run(64, {"num_layers": 8}, pp=2, vpp=2)
    programs = [chunk.program for chunk in next(finders(run, device_of(run))).chunks]
    order, bound = rounds.bound_of_stage(run, 0, programs)
    assert len(order) < len(stage_order(run, 0))
    changed = [*bound[:20], rounds.grown(bound[20], 1, 0), *bound[21:]]
    assert rounds.with_rounds(order, changed, 8, 3) is None
    assert rounds.with_rounds(order[:30], bound[:31], 8, 3) is None
