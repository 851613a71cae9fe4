"""Communication of data parallelism: what each ZeRO stage moves, and what computing hides."""

from __future__ import annotations

from dataclasses import dataclass

from .arithmetic import Number, maximum, minimum, where
from .collectives import Group, all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds
from .inputs import Decoder, Device, Layout, Software

WEIGHT_BYTES = 2.0
"""Weights are gathered in 16 bit."""


@dataclass(frozen=True)
class RankGradients:
    """What one rank reduces after the last micro-batch: elements, and the backward beside it."""

    weights: Number
    last_weights: Number
    """Those of the first layer and the embedding, whose gradients are ready when backward ends."""
    backward_seconds: Number


def exposed_seconds(communication: Number, computing: Number, overlap_cost: Number) -> Number:
    """What is seen of communication beside computing: the part that is longer, and the share of the
    multiprocessors that the hidden part takes away from computing. [T16]"""
    hidden = minimum(communication, computing)
    return maximum(communication - computing, 0.0) + overlap_cost * hidden


def shard_seconds(
    decoder: Decoder,
    layout: Layout,
    device: Device,
    software: Software,
    passes: tuple[Number, Number],
) -> Number:
    """Exposed seconds per layer and micro-batch of ZeRO-3; 0 below. [T17]

    Weights are gathered before forward and before backward, gradients scattered after; the next
    layer's gather runs beside this layer's computing. `passes`: seconds of the layer's forward and
    backward.
    """
    forward, backward = passes
    weights = decoder.layer_weights / layout.tp
    group = Group(layout.zero_group, layout.tp, layout.gpus_per_node)
    gather = all_gather_seconds(device, group, WEIGHT_BYTES * weights)
    scatter = gather
    if software.gradient_bytes != WEIGHT_BYTES:
        scatter = reduce_scatter_seconds(device, group, software.gradient_bytes * weights)
    seconds = exposed_seconds(gather, forward, device.overlap_cost) + exposed_seconds(
        gather + scatter, backward, device.overlap_cost
    )
    return where(layout.zero_stage == 3, seconds, 0.0)


def gradient_seconds(
    layout: Layout, device: Device, software: Software, rank: RankGradients
) -> Number:
    """Exposed seconds per step of the reduction of a rank's gradients. [T18]

    ZeRO 0: an all-reduce; 1 and 2: a reduce-scatter and the gather of the updated weights, the same
    bytes; 3: nothing, unless the shards are replicated (HSDP), whose peers all-reduce them. With
    overlap it runs beside the last micro-batch's backward, but for the gradients that only the end
    of backward brings: those of the first layer and the embedding.
    """
    ranks = layout.dp * layout.cp
    num_bytes = software.gradient_bytes * rank.weights
    whole = all_reduce_seconds(device, Group(ranks, layout.tp, layout.gpus_per_node), num_bytes)
    communication = where(layout.zero_stage == 3, hybrid_seconds(layout, device, num_bytes), whole)
    computing = rank.backward_seconds if software.overlaps_data_parallel else 0.0
    last = rank.last_weights / rank.weights * communication
    return maximum(communication - computing, last) + device.overlap_cost * minimum(
        communication, computing
    )


def hybrid_seconds(layout: Layout, device: Device, num_bytes: Number) -> Number:
    """The all-reduce of a rank's shard among its peers in the other groups; none without groups."""
    if layout.shard_group is None:
        return 0.0
    group = layout.zero_group
    peers = Group(layout.dp * layout.cp / group, layout.tp * group, layout.gpus_per_node)
    return all_reduce_seconds(device, peers, num_bytes / group)


def updated_weights(layout: Layout, rank_weights: Number) -> Number:
    """Parameters that one rank updates: its share of what ZeRO 1 to 3 divide. [T19]"""
    scattered = where(layout.zero_stage == 0, 1.0, layout.dp * layout.cp)
    return rank_weights / where(layout.zero_stage == 3, layout.zero_group, scattered)
