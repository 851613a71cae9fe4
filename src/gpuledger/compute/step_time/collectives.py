"""Seconds of collectives: latency + bytes / bandwidth, ring or tree, as NCCL itself estimates them.

NCCL computes such a time for every algorithm and protocol and takes the smallest
(src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime). The latencies and each protocol's
share of the bandwidth are its constants (presets/efficiency/nccl.yaml); the bandwidth itself is
what large messages are measured to reach, a share of the link's or the network's rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...config.efficiency import Nccl, Protocol
from .arithmetic import Number, is_array, log2_floor, maximum, minimum, where
from .inputs import Device

FIRST_CORRECTED_BYTES = 64
"""NCCL's correction of the tree's bandwidth has one entry for each doubling from here on."""


@dataclass(frozen=True)
class Group:
    """`ranks` ranks, each `stride` ranks after the one before, on nodes of `gpus_per_node`."""

    ranks: Number
    stride: Number
    gpus_per_node: int

    @property
    def ranks_per_node(self) -> Number:
        """Ranks of the group that share one node, at least one."""
        fitting = self.gpus_per_node // maximum(self.stride, 1)
        return minimum(maximum(fitting, 1), self.ranks)

    @property
    def nodes(self) -> Number:
        return self.ranks / self.ranks_per_node

    @property
    def inside(self) -> Number:
        """Whether all of it is on one node (one NVLink domain)."""
        return self.ranks * self.stride <= self.gpus_per_node


def bus_bytes_per_second(device: Device, group: Group) -> Number:
    """What a large message reaches: the link's rate inside a node; across nodes the NICs of the
    group's ranks on one node together, never more than the link. [T8]"""
    link = device.link_share * device.link_bytes_per_second
    network = group.ranks_per_node * device.network_share * device.network_bytes_per_second
    return where(group.inside, link, minimum(link, network))


def all_reduce_seconds(device: Device, group: Group, num_bytes: Number) -> Number:
    """Sum of `num_bytes` over all ranks, at all ranks: ring or tree, whichever is faster. [T9]
    [T10]"""
    bus = bus_bytes_per_second(device, group)
    options = [
        ring_seconds(protocol, group, bus, num_bytes, passes=2)
        for protocol in device.nccl.ring.values()
    ]
    options += [tree_seconds(device.nccl, name, group, bus, num_bytes) for name in device.nccl.tree]
    return _fastest(options, group)


def all_gather_seconds(device: Device, group: Group, num_bytes: Number) -> Number:
    """Every rank ends with all `num_bytes`, of which it had its part. [T9]"""
    bus = bus_bytes_per_second(device, group)
    options = [
        ring_seconds(protocol, group, bus, num_bytes, passes=1)
        for protocol in device.nccl.ring.values()
    ]
    return _fastest(options, group)


reduce_scatter_seconds = all_gather_seconds
"""Every rank ends with its part of the sum of `num_bytes`: the same steps in the other direction.
[T9]"""


def all_to_all_seconds(device: Device, group: Group, num_bytes: Number) -> Number:
    """Every rank sends 1/ranks of its `num_bytes` to each rank. [T11]

    Its messages inside the node and to other nodes use different wires at the same time.
    """
    simple, n = device.nccl.ring["simple"], group.ranks
    near = (
        (group.ranks_per_node - 1)
        / n
        * num_bytes
        / (device.link_share * device.link_bytes_per_second)
    )
    far = (
        (n - group.ranks_per_node)
        / n
        * num_bytes
        / (device.network_share * device.network_bytes_per_second)
    )
    far_latency = simple.base_seconds + simple.network_seconds
    near_latency = simple.base_seconds + simple.link_seconds
    seconds = where(group.inside, near_latency + near, far_latency + maximum(near, far))
    return where(n > 1, seconds, 0.0)


def send_seconds(device: Device, stride: Number, gpus_per_node: int, num_bytes: Number) -> Number:
    """One message from a rank to the one `stride` ranks later: over the link, or one NIC. [T11]"""
    simple = device.nccl.ring["simple"]
    inside = 2 * stride <= gpus_per_node
    wire = where(
        inside,
        device.link_share * device.link_bytes_per_second,
        minimum(
            device.network_share * device.network_bytes_per_second,
            device.link_share * device.link_bytes_per_second,
        ),
    )
    latency = simple.base_seconds + where(inside, simple.link_seconds, simple.network_seconds)
    return latency + num_bytes / wire


def ring_seconds(
    protocol: Protocol, group: Group, bus: Number, num_bytes: Number, *, passes: int
) -> Number:
    """passes x (n - 1) steps around the ring, each with 1/n of the bytes. [T9]

    passes: 2 for an all-reduce (a reduce-scatter and an all-gather), else 1. Of the steps that
    every part makes, passes x (nodes - 1) cross the network.
    """
    n = group.ranks
    steps = passes * (n - 1)
    network_steps = passes * (group.nodes - 1)
    latency = (
        protocol.base_seconds
        + (steps - network_steps) * protocol.link_seconds
        + network_steps * protocol.network_seconds
    )
    return latency + steps / n * num_bytes / limited(
        protocol, group, protocol.bandwidth_share * bus
    )


def tree_seconds(nccl: Nccl, name: str, group: Group, bus: Number, num_bytes: Number) -> Number:
    """All-reduce up and down a tree of nodes, a chain inside each node. [T10]

    Latency grows with the logarithm of the nodes; every byte crosses twice. NCCL corrects the
    bandwidth of middle sizes downwards.
    """
    protocol = nccl.tree[name]
    latency = protocol.base_seconds + 2 * (
        (group.ranks_per_node - 1) * protocol.link_seconds
        + log2_floor(group.nodes) * protocol.network_seconds
    )
    share = protocol.bandwidth_share * _correction(protocol.correction, num_bytes)
    return latency + 2 * num_bytes / limited(protocol, group, share * bus)


def limited(protocol: Protocol, group: Group, bandwidth: Number) -> Number:
    """The bandwidth, or what the protocol reaches at most, inside a node or across nodes."""
    near = protocol.node_limit_bytes_per_second
    far = protocol.network_limit_bytes_per_second
    if near is None or far is None:
        return bandwidth
    return minimum(bandwidth, where(group.inside, near, far))


def _correction(table: list[float], num_bytes: Number) -> Number:
    """The entry of floor(log2(bytes / 64)), and 1 beyond the table."""
    doublings = log2_floor(maximum(num_bytes / FIRST_CORRECTED_BYTES, 1.0))
    last = len(table)
    if not is_array(doublings):
        return table[int(doublings)] if doublings < last else 1.0
    import numpy as np

    return np.array([*table, 1.0])[np.minimum(doublings, last).astype(int)]


def _fastest(options: list[Number], group: Group) -> Number:
    """The smallest of them; nothing to do for a single rank."""
    seconds = options[0]
    for option in options[1:]:
        seconds = minimum(seconds, option)
    return where(group.ranks > 1, seconds, 0.0)
