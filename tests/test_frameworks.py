"""Frameworks: identities, and what can be counted by hand; streams are compared by self_check.frameworks."""
from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_runs import with_settings
from gpuledger.config import Run, RunOptions, resolve_run
from gpuledger.config.parallelism import Framework
from gpuledger.estimate import estimate
from gpuledger.memory.frameworks import MODELLED, policy_of
from gpuledger.memory.frameworks.ddp import assign
from gpuledger.memory.host import host_memory
from gpuledger.memory.peak import StepPeak
from gpuledger.program.device import Device
from gpuledger.program.tensor import Tensor

GPT2_PARAMETERS = 124_439_808


def resolved(*keys: str, gpus: int = 8, zero: int = 0, source: str = "gpt2") -> Run:
    return resolve_run(source, RunOptions(gpu="h100", gpus=gpus, zero=zero, global_batch=gpus,
                                          set=("precision=fp32", "attention=efficient", *keys)))[0]


def peak(run: Run) -> int:
    return int(StepPeak(run, Device()).find().requested_bytes)


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=6),
       st.integers(2, 65))
@settings(max_examples=100, deadline=None)
def test_fsdp2_ranks_sum_to_the_whole_plus_padding(shapes: list[tuple[int, int]], ranks: int) -> None:
    """Every rank stores ceil(d0 / N) rows of each parameter, so N of them store the padded whole."""
    run = resolved("framework=fsdp2", "gpus_per_node=1", gpus=ranks, zero=3)
    weights = [(Tensor(f"w{i}", shape, "float32", "parameter"), 1) for i, shape in enumerate(shapes)]
    stored = sum(share.local.numel for share in policy_of(run.parallel).parameters(weights))
    assert stored == sum(-(-rows // ranks) * columns for rows, columns in shapes)
    assert ranks * stored >= sum(rows * columns for rows, columns in shapes)


def test_zero_redundancy_gives_whole_parameters() -> None:
    """Over all ranks the updated parameters are each parameter once."""
    run = resolved("framework=zero-redundancy-optimizer", gpus=4, zero=1)
    weights = StepPeak(run, Device()).counted
    updated = [policy_of(run.parallel, rank).updated(weights) for rank in range(4)]
    assert sum(share.count * share.local.numel for of_rank in updated for share in of_rank) == GPT2_PARAMETERS


def test_ddp_keeps_gradients_twice_or_once() -> None:
    """In the update: beside 4 B of gradients, buckets of the same size; as views the buckets alone."""
    alone, beside = peak(resolved("seq_len=16")), peak(resolved("framework=ddp", "seq_len=16"))
    assert beside - alone >= 4 * GPT2_PARAMETERS


def test_ddp_buckets_by_hand() -> None:
    """Four gradients of 20 MiB, limits 1 MiB then 25 MiB: the first alone, then two, then the rest."""
    weights = [Tensor(f"w{i}", (5 * 2**20,), "float32", "parameter") for i in range(4)]
    assert [len(bucket) for bucket in assign(weights, (2**20, 25 * 2**20))] == [1, 2, 1]


@pytest.mark.parametrize(("framework", "stage"), [
    ("ddp", 0), ("zero-redundancy-optimizer", 1), ("fsdp2", 3), ("fsdp2", 2)])
def test_larger_micro_batch_never_needs_less(framework: str, stage: int) -> None:
    peaks = []
    for size in (1, 2, 4):
        run = resolved(f"framework={framework}", "seq_len=64", zero=stage)
        peaks.append(peak(with_settings(run, training__micro_batch_size=size,
                                        training__global_batch_size=8 * size)))
    assert peaks == sorted(peaks)


def test_every_framework_that_a_run_can_name_has_an_account() -> None:
    assert {name for name in MODELLED if name} == set(get_args(Framework))


def test_offloaded_bytes_of_fsdp2_by_hand() -> None:
    """fp32 shards and gradients are pinned, Adam's states of the owned rows are not."""
    finder = StepPeak(resolved("framework=fsdp2", "fsdp2.cpu_offload=true", zero=3), Device())
    rows = [(-(-w.shape[0] // 8) * (w.numel // w.shape[0])) for w in finder.weights]
    host = host_memory(finder.run, finder.policy, finder.counted)
    assert host.pinned_bytes == 2 * 4 * sum(rows)
    assert host.pageable_bytes == 2 * 4 * sum(rows)
    assert host.node_bytes == 8 * host.rank_bytes


def test_categories_add_up_under_each_framework() -> None:
    for framework, stage in (("ddp", 0), ("zero-redundancy-optimizer", 1), ("fsdp2", 3)):
        memory = estimate(resolved(f"framework={framework}", "seq_len=64", zero=stage), replay=True).memory
        assert sum(memory.category_bytes.values()) == memory.peak_allocated_bytes
