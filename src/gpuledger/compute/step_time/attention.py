"""Seconds of the attention core: one fused kernel, or two batched products and a softmax."""

from __future__ import annotations

from .arithmetic import ceil, minimum, sqrt
from .gemm import Passes, linear_seconds
from .inputs import Decoder, Device, Layout, Software
from .local import Local
from .pointwise import stream_seconds

FULL_RATE_HEAD_DIM = 128
QUERY_BLOCK = 128
"""Queries of one thread block of a fused kernel."""
BACKWARD_WORK = 2.5
"""The fused backward runs five products where forward runs two."""
SCORE_BYTES, SCORE_DROPOUT_BYTES = (4.0, 6.0), (9.0, 11.0)
"""Bytes per score, forward and backward: scale, mask and softmax read and write it in 16 bit;
dropout adds a mask and another pass."""


def attention_seconds(
    decoder: Decoder, layout: Layout, device: Device, software: Software
) -> Passes:
    """Seconds of one layer's attention core, one micro-batch, one rank."""
    if software.fused_attention:
        return fused_seconds(decoder, layout, device)
    return unfused_seconds(decoder, layout, device, software)


def fused_seconds(decoder: Decoder, layout: Layout, device: Device) -> Passes:
    """A kernel that never writes the scores: 4 a d FLOPs for each pair of query and key. [T5]

    Its rate is the kernel generation's ceiling x l / (l + l_half) for rows of l keys on average
    (half the sequence under the mask) x sqrt(d / 128) below 128, and only as many multiprocessors
    work as there are blocks of 128 queries.
    """
    local = Local.of(decoder, layout)
    flops = 4.0 * local.sequences_times_heads * decoder.causal_pairs / layout.cp * decoder.head_dim
    keys = 0.5 * decoder.seq_len / layout.cp
    length = keys / (keys + device.attention_half_length)
    width = sqrt(minimum(decoder.head_dim / FULL_RATE_HEAD_DIM, 1.0))
    blocks = local.sequences_times_heads * ceil(decoder.seq_len / layout.cp / QUERY_BLOCK)
    filled = minimum(blocks / device.num_sms, 1.0)
    rate = device.head_products.dense_peak_flops_per_second * length * width * filled
    return Passes(
        flops / (device.attention.forward * rate) + device.kernel_seconds,
        BACKWARD_WORK * flops / (device.attention.backward * rate) + 2 * device.kernel_seconds,
        0.0,
    )


def unfused_seconds(decoder: Decoder, layout: Layout, device: Device, software: Software) -> Passes:
    """QK^T and PV as batched products over the full square, and passes over the scores. [T6]"""
    local = Local.of(decoder, layout)
    s, d, batch = decoder.seq_len, decoder.head_dim, local.sequences_times_heads
    products = linear_seconds(device, s, s, d, batch=batch, product=device.head_products).plus(
        linear_seconds(device, s, d, s, batch=batch, product=device.head_products)
    )
    forward, backward = SCORE_DROPOUT_BYTES if software.dropout else SCORE_BYTES
    if software.counted is not None:  # then the layer's traffic holds that of the scores
        forward, backward = 0.0, 0.0
    scores = batch * s * s
    # Neither product holds a weight: both halves of its backward are gradients of inputs.
    return Passes(
        products.forward + stream_seconds(device, forward * scores, 2),
        products.backward + stream_seconds(device, backward * scores, 2),
        0.0,
    )
