"""From sizes, layout, device and software to the seconds of one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

from .arithmetic import Number, maximum, where
from .breakdown import Breakdown
from .collectives import (
    Group,
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
    send_seconds,
)
from .data_parallel import (
    RankWeights,
    exposed_seconds,
    gradient_seconds,
    root_weights,
    shard_seconds,
    tied_embedding_seconds,
    updated_weights,
    weight_gather_seconds,
)
from .inputs import Decoder, Device, Layout, Software
from .layer import HEAD_HOST_KERNELS, LayerSeconds, head_seconds, layer_seconds
from .local import Local
from .pipeline import StageSeconds, bubble_seconds, layers_of_stage, slowest_stage_seconds
from .pointwise import QUANTISE_BYTES, stream_seconds

ACTIVATION_ITEM_BYTES = 2.0
COLLECTIVES_PER_PASS = 2
"""Tensor parallelism: one after attention and one after the MLP, in each direction."""


@dataclass(frozen=True)
class Shared:
    """What depends only on tp, cp, the micro-batch and sequence parallelism: a planner computes it
    once for many layouts."""

    layer: LayerSeconds
    head: Number
    tensor_parallel: Number
    """One pass of one layer."""
    context_parallel: tuple[Number, Number]
    """One layer's forward and backward."""


def shared_seconds(decoder: Decoder, layout: Layout, device: Device, software: Software) -> Shared:
    """Device seconds of one layer and of the head, one micro-batch, one rank."""
    layer = layer_seconds(decoder, layout, device, software)
    return Shared(
        layer,
        head_seconds(decoder, layout, device, software),
        tensor_parallel_seconds(decoder, layout, device),
        context_parallel_seconds(decoder, layout, device, layer),
    )


def tensor_parallel_seconds(decoder: Decoder, layout: Layout, device: Device) -> Number:
    """Both all-reduces of (b s h) in one pass of one layer; with sequence parallelism each is a
    reduce-scatter and an all-gather. [T20]"""
    num_bytes = ACTIVATION_ITEM_BYTES * Local.of(decoder, layout).tokens * decoder.hidden_size
    group = Group(layout.tp, 1, layout.gpus_per_node)
    split = reduce_scatter_seconds(device, group, num_bytes) + all_gather_seconds(
        device, group, num_bytes
    )
    whole = all_reduce_seconds(device, group, num_bytes)
    return COLLECTIVES_PER_PASS * where(layout.sequence_parallel > 0, split, whole)


def context_parallel_seconds(
    decoder: Decoder, layout: Layout, device: Device, layer: LayerSeconds
) -> tuple[Number, Number]:
    """Exposed seconds of one layer's ring of keys and values, forward and backward. [T21]

    cp - 1 messages of a rank's keys and values, each beside the attention of the block before;
    backward sends their gradients as well.
    """
    local = Local.of(decoder, layout)
    num_bytes = ACTIVATION_ITEM_BYTES * 2 * local.tokens * local.key_value
    hops = layout.cp - 1
    once = hops * send_seconds(device, layout.tp, layout.gpus_per_node, num_bytes)
    twice = hops * send_seconds(device, layout.tp, layout.gpus_per_node, 2 * num_bytes)
    return (
        exposed_seconds(once, layer.attention.forward, device.overlap_cost),
        exposed_seconds(twice, layer.attention.backward, device.overlap_cost),
    )


@dataclass(frozen=True)
class Recomputed:
    """Forward seconds of one layer that backward runs again, by part."""

    work: Number
    communication: Number
    """The layer's tensor-parallel collectives; a context-parallel ring repeats with them."""

    @classmethod
    def of(cls, shared: Shared, layout: Layout, software: Software) -> Recomputed:
        """Whole layers, cores, or every second product and all pointwise operators. [T22]"""
        layer, whole, by_operator = (
            shared.layer,
            layout.recompute_layers,
            layout.recompute_operators,
        )
        gemm = layer.gemm.forward - (layer.last_product if software.stops_recompute_early else 0.0)
        core = whole if software.fused_attention else whole + layout.recompute_core
        work = (
            whole * gemm
            + 0.5 * by_operator * layer.gemm.forward
            + core * layer.attention.forward
            + (whole + by_operator) * layer.pointwise.forward
        )
        return cls(work, whole * (shared.tensor_parallel + shared.context_parallel[0]))


@dataclass(frozen=True)
class LayerPasses:
    """One layer and micro-batch, with its collectives, its recompute and the wait for the host."""

    forward: Number
    backward: Number
    host_wait: Number

    @classmethod
    def of(
        cls, shared: Shared, again: Recomputed, layout: Layout, software: Software
    ) -> LayerPasses:
        """max(device, kernels x host time) in each pass. [T23]"""
        parts = shared.layer.parts.values()
        forward = (
            sum(part.forward for part in parts)
            + shared.tensor_parallel
            + shared.context_parallel[0]
        )
        backward = (
            sum(part.backward for part in parts)
            + shared.tensor_parallel
            + shared.context_parallel[1]
            + again.work
            + again.communication
        )
        collectives = where(layout.tp > 1, COLLECTIVES_PER_PASS, 0) + shared.layer.more_kernels
        forward_kernels, backward_kernels = software.layer_kernels
        host_forward = software.host_seconds * (forward_kernels + collectives)
        host_backward = (
            software.host_seconds * (backward_kernels + collectives)
            + layout.recompute_layers * host_forward
        )
        wait_forward = maximum(host_forward - forward, 0.0)
        wait_backward = maximum(host_backward - backward, 0.0)
        return cls(forward + wait_forward, backward + wait_backward, wait_forward + wait_backward)


def step_breakdown(
    decoder: Decoder,
    layout: Layout,
    device: Device,
    software: Software,
    shared: Shared | None = None,
) -> Breakdown:
    """Seconds of one optimizer step, term by term. [T24]

    step = micro-batches x slowest stage + bubble + gradients + optimizer. `shared` may be passed in
    where it is known. Raises InputError for an unknown schedule.
    """
    shared = shared or shared_seconds(decoder, layout, device, software)
    again = Recomputed.of(shared, layout, software)
    layer = LayerPasses.of(shared, again, layout, software)
    weights = decoder.layer_weights / layout.tp
    layers, short = layers_of_stage(decoder, layout)
    n = layout.num_microbatches
    zero = shard_seconds(decoder, layout, device, software, (layer.forward, layer.backward))
    accumulation = where(n > 1, stream_seconds(device, software.accumulate_bytes * weights), 0.0)
    one_layer = layer.forward + layer.backward + zero + accumulation
    send = stage_send_seconds(decoder, layout, device, software)
    sends = where(software.overlaps_pipeline_sends, 0.0, 2.0 * layout.vpp * send)
    head = maximum(shared.head, HEAD_HOST_KERNELS * software.host_seconds)
    stage = layers * one_layer + sends
    slowest = slowest_stage_seconds(stage, one_layer, head, short)
    rank = RankWeights(
        layers * weights + decoder.vocabulary_weights(layout.pp) / layout.tp,
        weights + root_weights(decoder, layout, software),
        layers * layer.forward,
        layers * layer.backward,
    )
    quantised = QUANTISE_BYTES * layers * weights if software.fp8 else 0.0
    optimizer = stream_seconds(
        device, software.optimizer_bytes * updated_weights(layout, rank.weights) + quantised
    )
    parts, per_step = shared.layer.parts, n * layers
    return Breakdown(
        **{name: per_step * (part.forward + part.backward) for name, part in parts.items()},
        recompute=per_step * again.work,
        head=n * (slowest - stage),
        host_wait=per_step * layer.host_wait,
        accumulation=per_step * accumulation,
        tensor_parallel=per_step
        * (2 * shared.tensor_parallel + layout.recompute_layers * shared.tensor_parallel),
        context_parallel=per_step
        * (sum(shared.context_parallel) + layout.recompute_layers * shared.context_parallel[0]),
        zero_gathers=per_step * zero,
        pipeline_sends=n * sends,
        data_parallel=gradient_seconds(layout, device, software, rank)
        + weight_gather_seconds(layout, device, software, rank)
        + tied_embedding_seconds(decoder, layout, device, software),
        bubble=pipeline_bubble(layout, layers, layer, shared, (one_layer, send)),
        optimizer=optimizer,
    )


def stage_send_seconds(
    decoder: Decoder, layout: Layout, device: Device, software: Software
) -> Number:
    """One activation (b s h) from one stage to the next, split over tp where the framework does.
    [T25]"""
    local = Local.of(decoder, layout)
    ways = layout.tp if software.scatters_sends else layout.sequence_shard
    num_bytes = ACTIVATION_ITEM_BYTES * local.tokens * decoder.hidden_size / ways
    seconds = send_seconds(device, layout.gpus / layout.pp, layout.gpus_per_node, num_bytes)
    return where(layout.pp > 1, seconds, 0.0)


def pipeline_bubble(
    layout: Layout,
    layers: Number,
    layer: LayerPasses,
    shared: Shared,
    seconds: tuple[Number, Number],
) -> Number:
    """The schedule's bubble over the layers of a stage, and the sends on its way. [T12]"""
    one_layer, send = seconds
    weight_gradient = shared.layer.gemm.weight_gradient
    stage = StageSeconds(
        layers * layer.forward,
        layers * (one_layer - layer.forward - weight_gradient),
        layers * weight_gradient,
    )
    return (
        bubble_seconds(layout.schedule, stage, layout.pp, layout.vpp) + (layout.pp - 1) * 2 * send
    )
