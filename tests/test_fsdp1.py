"""FSDP1's flat parameters, by hand; its streams are compared by self_check.frameworks."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_runs import with_settings
from gpuledger.config import Run, RunOptions, resolve_run
from gpuledger.errors import NotYetError
from gpuledger.estimate import estimate
from gpuledger.memory.frameworks import policy_of
from gpuledger.memory.frameworks.flat_parameters import Layout, groups_of
from gpuledger.memory.peak import StepPeak
from gpuledger.program.device import Device
from gpuledger.program.tensor import Tensor

GPT2_PARAMETERS = 124_439_808


def resolved(*keys: str, zero: int = 3, gpus: int = 8) -> Run:
    return resolve_run("gpt2", RunOptions(gpu="h100", gpus=gpus, zero=zero, global_batch=gpus, set=(
        "framework=fsdp1", "fsdp1.param_dtype=bfloat16", "seq_len=64", *keys)))[0]


def weights_of(*elements: int) -> list[Tensor]:
    return [Tensor(f"w{i}", (n,), "bfloat16", "parameter") for i, n in enumerate(elements)]


def test_an_aligned_layout_by_hand() -> None:
    """3 elements, 5 of padding up to 16 B of bf16, 10, then up to a multiple of 4 ranks: 20."""
    layout = Layout(4, 4, "bfloat16", aligned=True)
    first, second = weights = weights_of(3, 10)
    assert layout.segments(weights) == [(first, 3), (None, 5), (second, 10), (None, 2)]
    assert layout.shard(weights) == 5
    assert layout.owned(weights, 0) == [(first, 3)]
    assert layout.owned(weights, 1) == [(second, 2)]
    assert layout.owned(weights, 3) == [(second, 3)]


@given(st.lists(st.integers(1, 999), min_size=1, max_size=9), st.integers(1, 64), st.booleans())
@settings(max_examples=100, deadline=None)
def test_ranks_own_every_element_once(elements: list[int], ranks: int, aligned: bool) -> None:
    layout, weights = Layout(ranks, ranks, "bfloat16", aligned), weights_of(*elements)
    owned = sum(part for rank in range(ranks) for _, part in layout.owned(weights, rank))
    assert owned == sum(elements)
    assert ranks * layout.shard(weights) >= layout.elements(weights) >= owned


def test_a_group_for_each_block_and_one_for_the_rest() -> None:
    finder = StepPeak(resolved(), Device())
    groups = groups_of(finder.weights)
    assert len(groups) == 1 + 12
    assert sum(int(w.numel) for group in groups for w in group) == GPT2_PARAMETERS
    assert {w.name.split(".")[0] for w in groups[0]} == {"token", "position", "final norm"}


@pytest.mark.parametrize(("zero", "stored"), [(3, 8), (2, 8), (0, 1)])
def test_what_a_rank_stores(zero: int, stored: int) -> None:
    """fp32 shards: all of it without sharding. GPT-2's blocks and its rest both divide by 8."""
    finder = StepPeak(resolved(zero=zero), Device())
    parameters = next(s for s in finder.states if s.name == "parameters")
    assert parameters.nbytes == 4 * GPT2_PARAMETERS // stored
    assert parameters.count == 13


def test_stage_3_needs_less_than_2_and_2_less_than_0() -> None:
    peaks = [estimate(resolved(zero=zero)).memory.peak_requested_bytes for zero in (3, 2, 0)]
    assert peaks == sorted(peaks)


def test_one_rank_shards_nothing() -> None:
    whole, alone = (StepPeak(resolved(gpus=1, zero=zero), Device()).find().requested_bytes for zero in (0, 3))
    assert whole == alone


@pytest.mark.parametrize("layers", [12, 24])
def test_a_shallow_walk_stands_for_the_whole_model(layers: int) -> None:
    """The peak from a few walked layers is that of every layer."""
    run = resolved(f"model.num_layers={layers}")
    finder = StepPeak(run, Device())
    assert finder.walk.copies > 0
    whole = StepPeak(run, Device())
    whole.walk = type(whole.walk)(layers, (layers, layers), 0)
    whole.program = whole.policy.build(run, Device(), whole.part, layers)
    whole.weights = whole.program.weights
    assert finder.find().requested_bytes == whole.find().requested_bytes


@pytest.mark.parametrize("key", ["fsdp1.param_dtype=null", "precision=fp16-mixed", "optimizer=muon"])
def test_what_has_no_account_is_refused(key: str) -> None:
    run = resolved(key)
    with pytest.raises(NotYetError, match=r"fsdp1|FSDP1"):
        estimate(run)


def test_larger_micro_batch_never_needs_less() -> None:
    peaks = []
    for size in (1, 2, 4):
        run = with_settings(resolved(), training__micro_batch_size=size,
                            training__global_batch_size=8 * size)
        peaks.append(StepPeak(run, Device()).find().requested_bytes)
    assert peaks == sorted(peaks)


def test_the_policy_of_a_rank_in_a_hybrid_mesh() -> None:
    """Two copies over 8 ranks: 4 share the parameters, and rank 5 is the second of them."""
    policy = policy_of(resolved("fsdp1.replicate=2").parallel, 5)
    assert (policy.ranks, policy.rank) == (4, 1)  # type: ignore[attr-defined]
