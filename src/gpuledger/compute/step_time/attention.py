"""Seconds of the attention core: one fused kernel, or two batched products and a softmax."""

from __future__ import annotations

from .arithmetic import Number, ceil, minimum, sqrt, where
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
FUSED_SOFTMAX_MULTIPLE = 4
"""Megatron's softmax kernel needs sequences x heads of a rank to be a multiple of this."""
FALLBACK_BYTES, FALLBACK_KERNELS = (33.0, 35.0), 4
"""What is more per score, forward and backward, and in each pass, where it does not apply: a cast to
fp32 (6 bytes), scale (8), mask (9), softmax (8, backward 12) and a cast back (6), less the kernel's
own 4 and 6."""


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
    falls_back = softmax_falls_back(local, software)
    forward = forward + falls_back * FALLBACK_BYTES[0]
    backward = backward + falls_back * FALLBACK_BYTES[1]
    kernels = 2 + falls_back * FALLBACK_KERNELS
    # Neither product holds a weight: both halves of its backward are gradients of inputs.
    return Passes(
        products.forward + stream_seconds(device, forward * scores, kernels),
        products.backward + stream_seconds(device, backward * scores, kernels),
        0.0,
    )


def softmax_falls_back(local: Local, software: Software) -> Number:
    """1 where Megatron's kernel is used but does not apply to this rank's heads, else 0. [T29]"""
    if software.fused_attention or not software.fused_softmax:
        return 0.0
    return where(local.sequences_times_heads % FUSED_SOFTMAX_MULTIPLE > 0, 1.0, 0.0)
