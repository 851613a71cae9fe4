"""Communication of data parallelism: what each ZeRO stage moves, and what computing hides."""

from __future__ import annotations

from .arithmetic import Number, maximum, minimum, where
from .collectives import Group, all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds
from .inputs import Decoder, Device, Layout, Software

WEIGHT_BYTES = 2.0
"""Weights are gathered in 16 bit."""


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
    scatter = reduce_scatter_seconds(device, group, software.gradient_bytes * weights)
    seconds = exposed_seconds(gather, forward, device.overlap_cost) + exposed_seconds(
        gather + scatter, backward, device.overlap_cost
    )
    return where(layout.zero_stage == 3, seconds, 0.0)


def gradient_seconds(
    layout: Layout, device: Device, software: Software, rank_weights: Number, last_backward: Number
) -> Number:
    """Exposed seconds per step of the reduction of a rank's gradients. [T18]

    ZeRO 0: an all-reduce; 1 and 2: a reduce-scatter and the gather of the updated weights, the same
    bytes; 3: nothing, unless the shards are replicated (HSDP), whose peers all-reduce them. With
    overlap it runs beside the last micro-batch's backward, `last_backward` seconds, but for the
    last tenth: the bucket that is ready when backward ends.
    """
    ranks, group = layout.dp * layout.cp, layout.zero_group
    num_bytes = software.gradient_bytes * rank_weights
    whole = all_reduce_seconds(device, Group(ranks, layout.tp, layout.gpus_per_node), num_bytes)
    peers = Group(ranks / group, layout.tp * group, layout.gpus_per_node)
    hybrid = all_reduce_seconds(device, peers, num_bytes / group)
    communication = where(layout.zero_stage == 3, hybrid, whole)
    computing = last_backward if software.overlaps_data_parallel else 0.0
    return maximum(
        communication - computing, LAST_BUCKET * communication
    ) + device.overlap_cost * minimum(communication, computing)


LAST_BUCKET = 0.1


def updated_weights(layout: Layout, rank_weights: Number) -> Number:
    """Parameters that one rank updates: its share of what ZeRO 1 to 3 divide. [T19]"""
    scattered = where(layout.zero_stage == 0, 1.0, layout.dp * layout.cp)
    return rank_weights / where(layout.zero_stage == 3, layout.zero_group, scattered)
