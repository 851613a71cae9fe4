"""The step: schedules by hand, identities, and arrays against single layouts."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from gpuledger.compute.step_time.breakdown import COMMUNICATION, COMPUTE, Breakdown
from gpuledger.compute.step_time.collectives import (
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
)
from gpuledger.compute.step_time.data_parallel import (
    RankWeights,
    exposed_seconds,
    gradient_seconds,
    shard_seconds,
    tied_embedding_seconds,
    updated_weights,
    weight_gather_seconds,
)
from gpuledger.compute.step_time.inputs import Layout, Software
from gpuledger.compute.step_time.pipeline import (
    SCHEDULES,
    StageSeconds,
    bubble_seconds,
    layers_of_stage,
)
from gpuledger.compute.step_time.step import shared_seconds, step_breakdown
from gpuledger.errors import InputError
from step_time_inputs import A100, GPT, layout, megatron

SCHEDULE_SECONDS = {
    "1f1b": 42.0,
    "gpipe": 42.0,
    "interleaved": 21.0,
    "zb-h1": 14.0,
    "zb-h2": 0.0,
    "zb-v": 0.0,
    "dualpipe": 12.0,
}
"""Of 8 stages with F = B = W = 2 s and vpp = 2: 7 x 6, the same, 7 x 6 / 2, 7 x 2, 7 x 0, 7 x 0,
and 3 x (2 + 2 x 4 - 3 x 2) = 12 for DualPipe."""


def step(placed: Layout, program: Software | None = None, **device: Any) -> Breakdown:
    return step_breakdown(GPT, placed, replace(A100, **device), program or megatron())


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_bubbles_by_hand(schedule: str) -> None:
    stage = StageSeconds(forward=2, input_gradient=2, weight_gradient=2)
    assert bubble_seconds(schedule, stage, 8, 2) == SCHEDULE_SECONDS[schedule]


def test_unequal_passes_leave_zero_bubble_schedules_a_bubble() -> None:
    stage = StageSeconds(forward=3, input_gradient=4, weight_gradient=2)
    assert bubble_seconds("zb-h1", stage, 4, 1) == 3 * 5
    assert bubble_seconds("zb-h2", stage, 4, 1) == 3 * 3
    assert bubble_seconds("1f1b", stage, 4, 1) == 3 * 9


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(InputError, match="there is no pipeline schedule 'zb-h3'"):
        step(layout(pp=2, schedule="zb-h3"))


def test_stages_one_layer_short() -> None:
    assert layers_of_stage(replace(GPT, num_layers=22), layout(pp=8)) == (3, True)
    assert layers_of_stage(GPT, layout(pp=8)) == (3, False)
    assert layers_of_stage(replace(GPT, num_layers=25), layout(pp=8)) == (25 / 8, False)


def test_the_terms_add_up_to_the_step() -> None:
    parts = step(
        layout(gpus=64, global_batch_size=512, tp=2, pp=4, cp=2, zero_stage=1, recompute_layers=1.0)
    )
    whole = parts.compute + parts.exposed_communication + parts.bubble + parts.optimizer
    assert whole == pytest.approx(parts.step_seconds, rel=1e-12)
    assert {*COMPUTE, *COMMUNICATION, "bubble", "optimizer"} == {f.name for f in fields(Breakdown)}
    assert all(value >= 0 for value in parts.terms.values())


def test_one_rank_alone_neither_waits_nor_communicates() -> None:
    parts = step(layout(gpus=1, global_batch_size=2))
    assert parts.exposed_communication == 0
    assert parts.bubble == 0
    assert parts.accumulation == 0  # a single micro-batch adds nothing
    assert parts.recompute == 0


@pytest.mark.parametrize(
    ("axis", "term"), [("tp", "tensor_parallel"), ("cp", "context_parallel"), ("pp", "bubble")]
)
def test_an_axis_of_one_costs_nothing(axis: str, term: str) -> None:
    assert step(layout()).terms[term] == 0
    assert step(layout(**{axis: 2})).terms[term] > 0


def test_the_bubble_is_p_minus_1_micro_batches() -> None:
    """Without sends, head and gradients: (p - 1) / n of the work of a stage."""
    placed = layout(gpus=8, pp=8, global_batch_size=32, micro_batch_size=1)
    parts = step(
        placed, megatron(host_seconds=0.0), link_bytes_per_second=1e30, nccl=instant_network()
    )
    work = parts.gemm + parts.attention + parts.pointwise
    assert parts.bubble == pytest.approx(7 / 32 * work, rel=1e-9)
    halved = step(
        replace(placed, vpp=3),
        megatron(host_seconds=0.0),
        link_bytes_per_second=1e30,
        nccl=instant_network(),
    )
    assert halved.bubble == pytest.approx(parts.bubble / 3, rel=1e-9)


def instant_network() -> Any:
    """NCCL's constants without latencies."""
    free = {
        name: protocol.model_copy(
            update={"base_seconds": 0.0, "link_seconds": 0.0, "network_seconds": 0.0}
        )
        for name, protocol in A100.nccl.ring.items()
    }
    return A100.nccl.model_copy(update={"ring": free})


def test_full_recompute_runs_the_forward_pass_again() -> None:
    plain = step(layout(gpus=1, global_batch_size=2), megatron(host_seconds=0.0))
    again = step(
        layout(gpus=1, global_batch_size=2, recompute_layers=1.0), megatron(host_seconds=0.0)
    )
    shared = shared_seconds(GPT, layout(), A100, megatron())  # the same for any number of GPUs
    forward = sum(part.forward for part in shared.layer.parts.values())
    assert again.recompute == pytest.approx(24 * forward, rel=1e-12)
    assert again.step_seconds - plain.step_seconds == pytest.approx(again.recompute, rel=1e-9)
    early = step(
        layout(gpus=1, global_batch_size=2, recompute_layers=1.0),
        megatron(host_seconds=0.0, stops_recompute_early=True),
    )
    assert again.recompute - early.recompute == pytest.approx(
        24 * shared.layer.last_product, rel=1e-9
    )


def test_selective_recompute_is_free_under_fused_attention() -> None:
    assert step(layout(recompute_core=1.0)).recompute == 0
    assert step(layout(recompute_core=1.0), megatron(fused_attention=False)).recompute > 0


def test_a_slow_host_is_what_the_step_waits_for() -> None:
    """24 layers x 4 micro-batches x (16 + 30) kernels x 1 ms, when the device is never the slower
    one."""
    slow = step(layout(gpus=1, global_batch_size=8), megatron(host_seconds=1e-3))
    fast = step(layout(gpus=1, global_batch_size=8), megatron(host_seconds=0.0))
    assert fast.host_wait == 0
    device = fast.gemm + fast.attention + fast.pointwise
    assert slow.host_wait + device == pytest.approx(24 * 4 * 46e-3, rel=1e-9)


def test_hidden_communication_still_takes_multiprocessors() -> None:
    assert exposed_seconds(1.0, 4.0, 0.15) == pytest.approx(0.15)
    assert exposed_seconds(5.0, 4.0, 0.15) == pytest.approx(1.0 + 0.15 * 4.0)
    assert exposed_seconds(5.0, 0.0, 0.15) == 5.0


def test_the_optimizer_updates_its_share() -> None:
    for stage, ways in ((0, 1), (1, 8), (2, 8), (3, 8)):
        assert updated_weights(layout(zero_stage=stage), 800.0) == 800.0 / ways
    assert updated_weights(layout(gpus=64, zero_stage=3, shard_group=8), 800.0) == 100.0
    ratio = step(layout()).optimizer / step(layout(zero_stage=1)).optimizer
    assert ratio == pytest.approx(8, rel=1e-12)


def test_zero_3_gathers_only_at_stage_3() -> None:
    assert step(layout(zero_stage=2)).zero_gathers == 0
    assert step(layout(zero_stage=3)).zero_gathers > 0
    assert step(layout(zero_stage=3)).data_parallel == 0
    assert (
        step(layout(gpus=64, global_batch_size=512, zero_stage=3, shard_group=8)).data_parallel > 0
    )


NODE_ENDS = Group(2, 4, 8)
RANK = RankWeights(weights=1e9, edge_weights=1e8, forward_seconds=2.0, backward_seconds=4.0)
"""A rank of 10 parts of weights, one of which forward needs first."""


def test_updated_weights_are_gathered_after_the_optimizer() -> None:
    """ZeRO 1 on 8 ranks: 2 GB of 16-bit weights, all of it seen, or a tenth and 0.15 of the rest's
    time when it runs beside the first forward pass."""
    alone = megatron(overlaps_weight_gather=False)
    whole = all_gather_seconds(A100, Group(8, 1, 8), 2e9)
    assert weight_gather_seconds(layout(zero_stage=1), A100, alone, RANK) == whole
    assert weight_gather_seconds(layout(zero_stage=2), A100, alone, RANK) == whole
    beside = weight_gather_seconds(layout(zero_stage=1), A100, megatron(), RANK)
    assert beside == pytest.approx(0.1 * whole + 0.15 * whole, rel=1e-12)
    for stage in (0, 3):
        assert weight_gather_seconds(layout(zero_stage=stage), A100, alone, RANK) == 0


def test_a_group_of_zero_1_gathers_inside_its_node() -> None:
    """64 ranks in groups of 8: the gather is a node's, and peers all-reduce an eighth each."""
    alone = megatron(overlaps_weight_gather=False, overlaps_data_parallel=False)
    placed = layout(gpus=64, global_batch_size=512, zero_stage=1, shard_group=8)
    node = all_gather_seconds(A100, Group(8, 1, 8), 2e9)
    assert weight_gather_seconds(placed, A100, alone, RANK) == node
    scattered = reduce_scatter_seconds(A100, Group(8, 1, 8), 2e9)
    peers = all_reduce_seconds(A100, Group(8, 8, 8), 2e9 / 8)
    assert gradient_seconds(placed, A100, alone, RANK) == pytest.approx(scattered + peers)
    whole = replace(alone, reduces_whole_gradients=True)
    assert gradient_seconds(placed, A100, whole, RANK) == all_reduce_seconds(
        A100, Group(64, 1, 8), 2e9
    )


def test_zero_3_sees_the_first_gather_and_the_last_scatter() -> None:
    """Of layers that hide their own: 23 x 0.15 x three messages, and two in full."""
    placed, passes = layout(zero_stage=3), (1.0, 1.0)
    per_layer = shard_seconds(GPT, placed, A100, megatron(), passes)
    matrices = GPT.layer_weights
    one = all_gather_seconds(A100, Group(8, 1, 8), 2 * matrices)
    edge = all_gather_seconds(A100, Group(8, 1, 8), 2 * (matrices + 51200 * 2048))
    assert 24 * per_layer == pytest.approx(23 * 0.15 * 3 * one + 2 * edge, rel=1e-12)
    own_head = replace(GPT, tied_embeddings=False)
    head = all_gather_seconds(A100, Group(8, 1, 8), 2 * 51200 * 2048)
    hidden = shard_seconds(own_head, placed, A100, megatron(), passes)
    assert 24 * (hidden - per_layer) == pytest.approx(0.15 * 2 * head, rel=1e-9)
    root = shard_seconds(own_head, placed, A100, megatron(root_holds_head=True), passes)
    assert root > hidden


def test_tied_embeddings_are_summed_between_the_ends_of_a_pipeline() -> None:
    placed = layout(gpus=32, pp=4, tp=2)  # the ends are on other nodes
    seconds = tied_embedding_seconds(GPT, placed, A100, megatron())
    assert seconds == all_reduce_seconds(A100, Group(2, 16, 8), 2 * 51200 * 2048 / 2)
    assert tied_embedding_seconds(GPT, layout(pp=4), A100, megatron()) == all_reduce_seconds(
        A100, NODE_ENDS, 2 * 51200 * 2048
    )
    assert tied_embedding_seconds(GPT, layout(), A100, megatron()) == 0
    apart = replace(GPT, tied_embeddings=False)
    assert tied_embedding_seconds(apart, placed, A100, megatron()) == 0


def test_fp8_casts_the_weights_once_a_step() -> None:
    """4 bytes of each layer's weights at 0.9 x 2 TB/s, whatever ZeRO divides."""
    cast = 4 * 24 * GPT.layer_weights / 1.8e12
    for stage in (0, 1):
        placed = layout(zero_stage=stage)
        more = step(placed, megatron(fp8=True)).optimizer - step(placed).optimizer
        assert more == pytest.approx(cast, rel=1e-9)


@pytest.mark.parametrize(
    "field", ["bandwidth_bytes_per_second", "link_bytes_per_second", "network_bytes_per_second"]
)
def test_faster_hardware_is_never_slower(field: str) -> None:
    for placed in (
        layout(gpus=64, global_batch_size=512, tp=2, pp=4),
        layout(gpus=64, global_batch_size=512, zero_stage=3),
        layout(gpus=16, global_batch_size=64, tp=16),
    ):
        base = step(placed).step_seconds
        seconds = [
            step(placed, **{field: factor * getattr(A100, field)}).step_seconds
            for factor in (1.5, 2, 4)
        ]
        assert all(a >= b for a, b in zip([base, *seconds], seconds, strict=False))


def test_a_million_layouts_read_the_same_formulas() -> None:
    """400 random layouts as one array, and one by one."""
    draw, columns = np.random.default_rng(7), {}
    for name, choices in (
        ("tp", (1, 2, 4, 8, 16)),
        ("pp", (1, 2, 4, 6, 8)),
        ("vpp", (1, 2, 3)),
        ("cp", (1, 2)),
        ("micro_batch_size", (1, 2, 4)),
        ("zero_stage", (0, 1, 2, 3)),
        ("recompute_layers", (0.0, 1.0)),
        ("recompute_core", (0.0, 1.0)),
        ("sequence_parallel", (0, 1)),
    ):
        columns[name] = draw.choice(choices, 400)
    dp = draw.choice([1, 2, 8, 32], 400)
    columns["gpus"] = dp * columns["tp"] * columns["pp"] * columns["cp"]
    columns["global_batch_size"] = dp * columns["micro_batch_size"] * draw.integers(1, 9, 400)
    together = step_breakdown(GPT, Layout(**columns), A100, megatron())
    for i in range(400):
        single = step_breakdown(
            GPT, Layout(**{k: v[i].item() for k, v in columns.items()}), A100, megatron()
        )
        for name, value in single.terms.items():
            assert np.broadcast_to(together.terms[name], 400)[i] == pytest.approx(
                value, rel=1e-11
            ), name
