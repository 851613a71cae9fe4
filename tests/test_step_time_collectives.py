"""Collectives by hand from NCCL's constants, and what they are limited by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuledger.compute.step_time.collectives import (
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    bus_bytes_per_second,
    reduce_scatter_seconds,
    ring_seconds,
    send_seconds,
    tree_seconds,
)
from gpuledger.compute.step_time.device import device_of_gpu
from gpuledger.config import load_gpu
from step_time_inputs import A100

NODE = Group(ranks=8, stride=1, gpus_per_node=8)
GIB = 2**30


def test_bus_of_a_node_and_across_nodes() -> None:
    assert bus_bytes_per_second(A100, NODE) == pytest.approx(0.7 * 300e9)
    assert bus_bytes_per_second(A100, Group(64, 1, 8)) == pytest.approx(8 * 0.8 * 25e9)
    assert bus_bytes_per_second(A100, Group(16, 8, 8)) == pytest.approx(0.8 * 25e9)  # one NIC
    assert bus_bytes_per_second(A100, Group(4, 4, 8)) == pytest.approx(2 * 0.8 * 25e9)  # two a node
    fast = replace(A100, network_bytes_per_second=100e9)
    assert bus_bytes_per_second(fast, Group(64, 1, 8)) == pytest.approx(0.7 * 300e9)  # the link


def test_large_all_reduce_in_a_node() -> None:
    """Ring, Simple: 8.4 us + 14 steps of 3.4 us, then 14/8 of the bytes at 210 GB/s."""
    assert all_reduce_seconds(A100, NODE, GIB) == pytest.approx(
        8.4e-6 + 14 * 3.4e-6 + 14 / 8 * GIB / 210e9, rel=1e-12
    )


def test_small_all_reduce_takes_the_protocol_of_least_latency() -> None:
    """1 KiB, ring, LL: 6.6 us + 14 x 0.6 us, then 14/8 KiB at 87.7 GB/s; its tree is slower."""
    assert all_reduce_seconds(A100, NODE, 1024) == pytest.approx(
        6.6e-6 + 14 * 0.6e-6 + 14 / 8 * 1024 / 87.7e9, rel=1e-9
    )


def test_gathers_are_half_of_an_all_reduce() -> None:
    assert all_gather_seconds(A100, NODE, GIB) == pytest.approx(
        8.4e-6 + 7 * 3.4e-6 + 7 / 8 * GIB / 210e9, rel=1e-12
    )
    assert reduce_scatter_seconds(A100, NODE, GIB) == all_gather_seconds(A100, NODE, GIB)


MEASURED_ON_8_H100 = {  # MiB: microseconds of a gather, of a scatter
    64: (211.3, 205.3),
    128: (386.4, 385.5),
    256: (730.2, 726.0),
    512: (1394.3, 1410.0),
}
"""github:MooreThreads/SimuMax@5c8e402 simu_tools/efficency_test/nccl_fit.py, nccl-tests."""
MEASURED_ON_8_A100 = {64: 615.7, 128: 1181.6, 256: 2218.2, 512: 4248.8}
"""MiB: microseconds of an all-reduce, one process per GPU, nccl-tests (not used by any curve)."""


def test_messages_of_a_training_step_take_what_nccl_tests_measured() -> None:
    """At sizes that steps send, within 4 % on 8 H100s and 7 % on 8 A100s."""
    h100 = device_of_gpu(load_gpu("h100-80gb-sxm"), "bf16", "flash2")
    for mib, pair in MEASURED_ON_8_H100.items():
        for microseconds in pair:
            found = 1e6 * all_gather_seconds(h100, NODE, mib * 2**20)
            assert found == pytest.approx(microseconds, rel=0.04), mib
    for mib, microseconds in MEASURED_ON_8_A100.items():
        found = 1e6 * all_reduce_seconds(A100, NODE, mib * 2**20)
        assert found == pytest.approx(microseconds, rel=0.07), mib


def test_ring_across_nodes_counts_network_steps() -> None:
    """64 ranks on 8 nodes: 126 steps, 14 of them over the network at 14 us."""
    group, simple = Group(64, 1, 8), A100.nccl.ring["simple"]
    assert ring_seconds(simple, group, 160e9, 0, passes=2) == pytest.approx(
        8.4e-6 + 112 * 3.4e-6 + 14 * 14e-6
    )


def test_tree_latency_grows_with_the_logarithm_of_nodes() -> None:
    def tree(nodes: int) -> float:
        return float(tree_seconds(A100.nccl, "simple", Group(8 * nodes, 1, 8), 160e9, 0))

    assert tree(8) == pytest.approx(8.4e-6 + 2 * (7 * 4e-6 + 3 * 14e-6))
    assert tree(64) - tree(8) == pytest.approx(2 * 3 * 14e-6)


def test_trees_win_where_rings_have_many_steps() -> None:
    group, size = Group(4096, 1, 8), 2**20
    bus = bus_bytes_per_second(A100, group)
    rings = [ring_seconds(p, group, bus, size, passes=2) for p in A100.nccl.ring.values()]
    assert all_reduce_seconds(A100, group, size) < min(rings) / 4


def test_tree_bandwidth_of_middle_sizes_is_corrected() -> None:
    """4 MiB is 2^16 x 64 bytes: entry 16 of Simple's table is 0.7."""
    simple, group = A100.nccl.tree["simple"], Group(16, 1, 8)
    latency = tree_seconds(A100.nccl, "simple", group, 160e9, 0)
    assert simple.correction[16] == 0.7
    assert tree_seconds(A100.nccl, "simple", group, 160e9, 2**22) - latency == pytest.approx(
        2 * 2**22 / (0.92 * 0.7 * 160e9)
    )
    assert tree_seconds(A100.nccl, "simple", group, 160e9, 2**33) - latency == pytest.approx(
        2 * 2**33 / (0.92 * 160e9)
    )


def test_all_to_all_uses_link_and_network_at_once() -> None:
    inside = all_to_all_seconds(A100, NODE, GIB)
    assert inside == pytest.approx(11.8e-6 + 7 / 8 * GIB / 210e9)
    across = all_to_all_seconds(A100, Group(64, 1, 8), GIB)
    assert across == pytest.approx(22.4e-6 + 56 / 64 * GIB / 20e9)


def test_send_over_the_link_or_one_nic() -> None:
    assert send_seconds(A100, 4, 8, GIB) == pytest.approx(11.8e-6 + GIB / 210e9)
    assert send_seconds(A100, 8, 8, GIB) == pytest.approx(22.4e-6 + GIB / 20e9)


@pytest.mark.parametrize("collective", [all_reduce_seconds, all_gather_seconds, all_to_all_seconds])
def test_one_rank_has_nothing_to_do(collective: object) -> None:
    assert callable(collective)
    assert collective(A100, Group(1, 1, 8), GIB) == 0


@pytest.mark.parametrize("collective", [all_reduce_seconds, all_gather_seconds, all_to_all_seconds])
def test_arrays_equal_numbers(collective: object) -> None:
    assert callable(collective)
    draw = np.random.default_rng(1)
    ranks = 2 ** draw.integers(0, 10, 200)
    stride = 2 ** draw.integers(0, 5, 200)
    sizes = 2.0 ** draw.uniform(3, 34, 200)
    together = collective(A100, Group(ranks, stride, 8), sizes)
    singly = [
        collective(A100, Group(int(r), int(s), 8), float(b))
        for r, s, b in zip(ranks, stride, sizes, strict=True)
    ]
    assert together.tolist() == pytest.approx(singly, rel=1e-12)


def test_faster_wires_are_never_slower() -> None:
    for ranks, stride in ((8, 1), (64, 1), (16, 8)):
        group = Group(ranks, stride, 8)
        for field in ("link_bytes_per_second", "network_bytes_per_second"):
            faster = replace(A100, **{field: 2 * getattr(A100, field)})
            assert all_reduce_seconds(faster, group, GIB) <= all_reduce_seconds(A100, group, GIB)
