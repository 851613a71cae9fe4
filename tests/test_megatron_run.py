"""Megatron-LM: peaks against whole streams, what arrives when, every view of a run, what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import NotYetError
from gpuledger.estimate import device_of, estimate, refuse_unmodelled
from gpuledger.memory.export import NamedStream
from gpuledger.memory.frameworks.megatron.arrivals import Arrival, arrivals_of
from gpuledger.memory.frameworks.megatron.runner import MegatronRunner
from gpuledger.memory.frameworks.megatron.stage import MegatronStage
from gpuledger.memory.frameworks.megatron.stream_peak import highest
from gpuledger.memory.instants import account_of_run
from gpuledger.memory.pipeline.runner import stage_order, stage_programs
from gpuledger.report.step_trace import trace_step
from megatron_runs import drawn_megatron_run, megatron_run


@pytest.mark.parametrize("seed", range(40))
def test_closed_form_is_the_streams_peak(seed: int) -> None:
    """One walk of each pass and what is bound beside it, against all micro-batches and layers of a step."""
    run = drawn_megatron_run(seed)
    refuse_unmodelled(run)
    stage, device = seed % run.parallel.pp, device_of(run)
    found = MegatronStage(run, device, stage).find()
    runner = MegatronRunner(run, stage_programs(run, device, stage), stage_order(run, stage), stage)
    for _ in range(3):
        runner.step()
    _, level = highest(runner.memory, runner.marks[2 * len(runner.marks) // 3][0])
    assert found.requested_bytes == level
    states, live = (sum(int(entry.nbytes) for entry in kind) for kind in (found.states, found.live))
    assert states + live == level


@given(pp=st.sampled_from([2, 3, 4]), vpp=st.integers(2, 3), extra=st.integers(0, 3), groups=st.integers(1, 3),
       overlap=st.booleans(), flush=st.booleans())
@settings(max_examples=25, deadline=None)
def test_what_arrives_early_is_what_passes_need(
        pp: int, vpp: int, extra: int, groups: int, overlap: bool, flush: bool) -> None:
    """On every stage: one input for each forward pass that has one, one gradient for each backward pass,
    never after the pass that takes it."""
    group = pp + extra
    options = {"microbatch_group_size": group, "overlap_p2p_communication": overlap,
               "overlap_p2p_communication_warmup_flush": flush}
    run = megatron_run(groups * group, {"num_layers": pp * vpp}, {}, options, pp=pp, vpp=vpp)
    for stage in range(pp):
        arrived: Counter[Arrival] = Counter()
        arrivals = arrivals_of(run, stage, run.num_microbatches)
        for number, step in enumerate(stage_order(run, stage)):
            arrived.update(arrivals.get(number, ()))
            first, last = (0, 0), (pp - 1, vpp - 1)
            if (stage, step.chunk) != (first if step.kind == "F" else last):
                arrived[Arrival(step.chunk, gradient=step.kind == "B")] -= 1
            assert min(arrived.values(), default=0) >= 0
        assert set(arrived.values()) == {0}


def test_a_larger_group_waits_on_the_ends_of_the_ring() -> None:
    """pp 2, group 3: the last stage has the first gradient one pass early, beside a forward pass."""
    options = {"microbatch_group_size": 3}
    run = megatron_run(3, {"num_layers": 4}, {}, options, pp=2, vpp=2)
    order = stage_order(run, 1)
    assert "".join(f"{s.kind}{s.chunk} " for s in order) == (
        "F0 F0 F0 F1 B1 F1 B1 F1 B1 B0 B0 B0 ")
    gradients = {number: [a.chunk for a in found if a.gradient]
                 for number, found in arrivals_of(run, 1, 3).items()}
    assert {number: chunks for number, chunks in gradients.items() if chunks} == {7: [0], 9: [0], 10: [0]}


def test_every_view_of_a_run_answers() -> None:
    run = megatron_run(6, {"num_layers": 8}, {"recompute": "selective"}, pp=2, vpp=2, tp=2,
                       sequence_parallel=True, zero_stage=1, dp=2)
    result = estimate(run, replay=True)
    assert sum(result.memory.category_bytes.values()) == result.memory.peak_allocated_bytes
    assert result.memory.peak_reserved_bytes is not None
    assert result.memory.peak_reserved_bytes >= result.memory.peak_allocated_bytes
    labels = NamedStream(run, device_of(run)).labels()
    assert any(label.startswith("forward/block 0/linear_qkv") for label in labels)
    assert trace_step(run).segments
    account = account_of_run(run, device_of(run))
    assert [b.phase for b in account.boundaries[-2:]] == ["optimizer", "zero grad"]
    assert account.peak.requested_bytes == MegatronStage(run, device_of(run), 0).find().requested_bytes


@pytest.mark.parametrize(("changes", "words"), [
    ({"training": {"precision": "bf16-mixed"}}, "bf16-mixed"),
    ({"training": {"optimizer": "lion"}}, "lion"),
    ({"training": {"attention": "efficient"}}, "efficient"),
    ({"training": {"recompute": {"every": 2}}}, "every 2 blocks"),
    ({"training": {"loss": "chunked"}}, "chunked"),
    ({"options": {"recompute_method": "block"}}, "recompute_method"),
    ({"options": {"recompute_modules": ["mlp"]}}, "recompute_modules"),
    ({"options": {"recompute_modules": ["layernorm"], "transformer_impl": "local"},
      "training": {"recompute": "selective", "attention": "eager"}}, "layernorm with local layers"),
    ({"options": {"use_precision_aware_optimizer": True}}, "needs the distributed optimizer"),
    ({"options": {"defer_embedding_wgrad_compute": True}}, "fills the bubble"),
    ({"model": {"sliding_window": 32}}, "windows"),
    ({"cp": 2, "training": {"attention": "eager"}}, "fused attention only"),
    ({"model": {"bias": False}}, "LayerNorm has a bias"),
    ({"num_microbatches": 6, "vpp": 2, "pp": 4, "model": {"num_layers": 8}}, "last group is too small"),
])
def test_what_has_no_account_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(NotYetError, match=words):
        estimate(megatron_run(**changes))


def test_the_page_of_the_framework_names_every_option() -> None:
    page = (Path(__file__).parents[1] / "docs" / "megatron.md").read_text()
    options = type(megatron_run().parallel.megatron).model_fields
    assert [name for name in options if f"`{name}`" not in page] == []
