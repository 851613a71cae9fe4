"""Seconds of everything that is bound by memory traffic: norms, residuals, activations, casts."""

from __future__ import annotations

from .arithmetic import Number
from .gemm import Passes
from .inputs import Decoder, Device, Layout, Software
from .local import Local

FORWARD_KERNELS, BACKWARD_KERNELS = 7, 12
"""Pointwise kernels of a layer: two norms, two residuals, activation, position encoding, transpose.
"""
RESIDUAL_BYTES = 12.0
"""Both residual additions: each reads two and writes one element of 2 bytes."""
DROPOUT_BYTES = 2.0
"""Both dropouts, fused with the residuals, write a mask of one byte an element."""
ACTIVATION_BYTES, GATED_BYTES = 4.0, 6.0
"""Read one and write one; gated: read two, write one."""
TRANSPOSE_BYTES, ROTARY_BYTES = 4.0, 8.0
"""Per element of queries, keys and values: their layout alone, or rotation and layout."""
QUANTISE_BYTES = 4.0
"""fp8: an operand is read in 16 bit and written twice in 8 bit, once transposed. Weights once a
step (Transformer Engine, is_first_microbatch), the others in every pass."""
BACKWARD_TRAFFIC = 2.0
"""Backward reads the gradient and what was saved, and writes a gradient."""


def stream_seconds(device: Device, moved_bytes: Number, kernels: Number = 0) -> Number:
    """Seconds to move these bytes through memory in `kernels` kernels. [T3]"""
    sustained = device.bandwidth_share * device.bandwidth_bytes_per_second
    return moved_bytes / sustained + kernels * device.kernel_seconds


def pointwise_seconds(
    decoder: Decoder, layout: Layout, device: Device, software: Software
) -> Passes:
    """Seconds of one layer's pointwise operators, one micro-batch, one rank. [T4]"""
    if software.counted is not None:
        layer = software.counted.layer
        return Passes(
            stream_seconds(device, layer.forward_bytes, layer.forward_kernels),
            stream_seconds(device, layer.backward_bytes, layer.backward_kernels),
            0.0,
        )
    local = Local.of(decoder, layout)
    forward = traffic_bytes(decoder, layout, local, software)
    casts = software.weight_cast_bytes * decoder.layer_weights / layout.tp
    quantised_forward, quantised_backward = quantised_bytes(decoder, local, software)
    return Passes(
        stream_seconds(device, forward + quantised_forward + casts, FORWARD_KERNELS),
        stream_seconds(device, BACKWARD_TRAFFIC * forward + quantised_backward, BACKWARD_KERNELS),
        0.0,
    )


def traffic_bytes(decoder: Decoder, layout: Layout, local: Local, software: Software) -> Number:
    """Bytes that the forward pass of one layer's pointwise operators moves, in 16 bit. [T4]

    On the residual stream (b s h / sp): two norms, two residuals. In the MLP (b s f / tp): the
    activation. In attention (b s (q + kv) / tp): rotation and transposes.
    """
    stream = local.tokens * decoder.hidden_size / layout.sequence_shard
    residuals = RESIDUAL_BYTES + (DROPOUT_BYTES if software.dropout else 0.0)
    activation = GATED_BYTES if decoder.gated else ACTIVATION_BYTES
    positions = ROTARY_BYTES if decoder.rotary else TRANSPOSE_BYTES
    return (
        (2 * software.norm_bytes + residuals) * stream
        + activation * local.tokens * local.ffn
        + positions * local.tokens * (local.query + local.key_value)
    )


def quantised_bytes(decoder: Decoder, local: Local, software: Software) -> tuple[Number, Number]:
    """Bytes that fp8 adds, forward (inputs of the four products) and backward (their gradients).
    [T4]"""
    if not software.fp8:
        return 0.0, 0.0
    ups = 2 if decoder.gated else 1
    inputs = 2 * decoder.hidden_size + local.query + local.ffn
    gradients = 2 * decoder.hidden_size + local.query + 2 * local.key_value + ups * local.ffn
    return QUANTISE_BYTES * local.tokens * inputs, QUANTISE_BYTES * local.tokens * gradients
