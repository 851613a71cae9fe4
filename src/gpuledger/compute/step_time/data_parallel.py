"""Communication of data parallelism: what each ZeRO stage moves, and what computing hides."""

from __future__ import annotations

from dataclasses import dataclass

from .arithmetic import Number, both, maximum, minimum, where
from .collectives import Group, all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds
from .inputs import Decoder, Device, Layout, Software

WEIGHT_BYTES = 2.0
"""Weights are gathered in 16 bit."""


@dataclass(frozen=True)
class RankWeights:
    """What one rank holds and reduces: elements, and the computing that hides their messages."""

    weights: Number
    edge_weights: Number
    """Those of the first layer and the embedding: the first that forward needs, and the last whose
    gradients are ready."""
    forward_seconds: Number
    backward_seconds: Number
    """Of all layers of the rank, one micro-batch."""


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
    """Exposed seconds of ZeRO-3 per layer and micro-batch, a mean over a stage's layers; 0 below.
    [T17]

    Weights are gathered before forward and before backward, gradients scattered after; the next
    layer's gather runs beside this layer's computing. Nothing runs beside the gather of the
    embedding and the first layer, and beside the scatter of their gradients. A head of its own is
    gathered once and hidden, unless it is in FSDP1's root. `passes`: seconds of the layer's forward
    and backward.
    """
    forward, backward = passes
    weights = decoder.layer_weights / layout.tp
    gather, scatter = gather_and_scatter(layout, device, software, weights)
    layer = exposed_seconds(gather, forward, device.overlap_cost) + exposed_seconds(
        gather + scatter, backward, device.overlap_cost
    )
    root = root_weights(decoder, layout, software)
    edge = sum(gather_and_scatter(layout, device, software, weights + root))
    own_head = decoder.vocabulary_weights(layout.pp) / layout.tp - root
    messages = sum(gather_and_scatter(layout, device, software, own_head))
    head = where(own_head > 0, device.overlap_cost * messages, 0.0)
    layers = decoder.num_layers / layout.pp
    rest = maximum(layers - 1, 0.0)
    return where(layout.zero_stage == 3, (rest * layer + edge + head) / layers, 0.0)


def root_weights(decoder: Decoder, layout: Layout, software: Software) -> Number:
    """Elements that are needed before the first layer: the embedding, and FSDP1's root also holds
    the head."""
    if software.root_holds_head:
        return decoder.vocabulary_weights(layout.pp) / layout.tp
    return decoder.embedding_weights / layout.tp


def gather_and_scatter(
    layout: Layout, device: Device, software: Software, weights: Number
) -> tuple[Number, Number]:
    """Seconds to gather so many weights over the ranks of a shard, and to scatter their gradients."""
    group = Group(layout.zero_group, layout.tp, layout.gpus_per_node)
    gather = all_gather_seconds(device, group, WEIGHT_BYTES * weights)
    if software.gradient_bytes == WEIGHT_BYTES:
        return gather, gather
    return gather, reduce_scatter_seconds(device, group, software.gradient_bytes * weights)


def gradient_seconds(
    layout: Layout, device: Device, software: Software, rank: RankWeights
) -> Number:
    """Exposed seconds per step of the reduction of a rank's gradients. [T18]

    ZeRO 0: an all-reduce; 1 and 2: a reduce-scatter (an all-reduce where the framework reduces them
    whole); 3: nothing, since its layers scattered them. Where shards are replicated, their peers
    all-reduce them. With overlap it runs beside the last micro-batch's backward, but for the
    gradients that only the end of backward brings: those of the first layer and the embedding.
    """
    num_bytes = software.gradient_bytes * rank.weights
    ranks = Group(layout.dp * layout.cp, layout.tp, layout.gpus_per_node)
    whole = all_reduce_seconds(device, ranks, num_bytes)
    peers = replica_seconds(layout, device, num_bytes)
    scattered = whole
    if not software.reduces_whole_gradients:
        shard = Group(layout.zero_group, layout.tp, layout.gpus_per_node)
        scattered = reduce_scatter_seconds(device, shard, num_bytes) + peers
    below = where(layout.zero_stage == 0, whole, scattered)
    communication = where(layout.zero_stage == 3, peers, below)
    computing = rank.backward_seconds if software.overlaps_data_parallel else 0.0
    return beside(communication, computing, rank, device)


def weight_gather_seconds(
    layout: Layout, device: Device, software: Software, rank: RankWeights
) -> Number:
    """Exposed seconds per step of ZeRO 1 and 2 until every rank has the updated weights. [T27]

    A gather over the ranks of a shard, after the optimizer; with overlap beside the next step's
    first forward pass, but for what that needs first.
    """
    group = Group(layout.zero_group, layout.tp, layout.gpus_per_node)
    communication = all_gather_seconds(device, group, WEIGHT_BYTES * rank.weights)
    computing = rank.forward_seconds if software.overlaps_weight_gather else 0.0
    seconds = beside(communication, computing, rank, device)
    return where(both(layout.zero_stage > 0, layout.zero_stage < 3), seconds, 0.0)


def beside(communication: Number, computing: Number, rank: RankWeights, device: Device) -> Number:
    """What is seen of a message of all weights: never less than that of the edge weights. [T16]"""
    edge = rank.edge_weights / rank.weights * communication
    hidden = minimum(communication, computing)
    return maximum(communication - computing, edge) + device.overlap_cost * hidden


def replica_seconds(layout: Layout, device: Device, num_bytes: Number) -> Number:
    """The all-reduce of a rank's shard among its peers in the other groups; none without groups."""
    if layout.shard_group is None:
        return 0.0
    group = layout.zero_group
    peers = Group(layout.dp * layout.cp / group, layout.tp * group, layout.gpus_per_node)
    return all_reduce_seconds(device, peers, num_bytes / group)


def tied_embedding_seconds(
    decoder: Decoder, layout: Layout, device: Device, software: Software
) -> Number:
    """The embedding's gradient, summed between the first and the last stage, which both hold it.
    [T28]"""
    if not decoder.tied_embeddings:
        return 0.0
    num_bytes = software.gradient_bytes * decoder.embedding_weights / layout.tp
    ends = Group(2, layout.gpus / 2, layout.gpus_per_node)  # on one node if all stages are
    return where(layout.pp > 1, all_reduce_seconds(device, ends, num_bytes), 0.0)


def updated_weights(layout: Layout, rank_weights: Number) -> Number:
    """Parameters that one rank updates: its share of what ZeRO 1 to 3 divide. [T19]"""
    return rank_weights / where(layout.zero_stage == 0, 1.0, layout.zero_group)
