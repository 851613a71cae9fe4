"""Seconds of one decoder layer, of one micro-batch on one rank, by part."""

from __future__ import annotations

from dataclasses import dataclass

from .arithmetic import Number
from .attention import FALLBACK_KERNELS, attention_seconds, softmax_falls_back
from .gemm import Passes, linear_seconds
from .inputs import Decoder, Device, Layout, Software
from .local import Local
from .pointwise import pointwise_seconds, stream_seconds

HEAD_KERNELS, EMBEDDING_KERNELS = 12, 8
EMBEDDING_BYTES = 30.0
"""Per element of the embedding's output: lookup, its gradient, the final norm."""
HEAD_HOST_KERNELS = 40
"""Kernels that embedding, head and loss enqueue, forward and backward."""


@dataclass(frozen=True)
class LayerSeconds:
    """Device seconds of one layer: its products, its attention core, its pointwise operators."""

    gemm: Passes
    last_product: Number
    """The forward product that a recompute which stops early leaves out (part of `gemm`)."""
    attention: Passes
    pointwise: Passes
    more_kernels: Number
    """Of each pass, beyond those that the software's profile counts."""

    @property
    def parts(self) -> dict[str, Passes]:
        return {"gemm": self.gemm, "attention": self.attention, "pointwise": self.pointwise}


def layer_seconds(
    decoder: Decoder, layout: Layout, device: Device, software: Software
) -> LayerSeconds:
    """Four products (QKV, output, up, down) and what stands between them. [T2]

    Products of one rank: (t, h) x (h, q + 2 kv), (t, q) x (q, h), (t, h) x (h, f) (gate and up: 2
    f), (t, f) x (f, h), where t are the micro-batch's tokens and q, kv, f are divided by tp.
    """
    local, h = Local.of(decoder, layout), decoder.hidden_size
    ups = 2 if decoder.gated else 1
    t, q, kv, f = local.tokens, local.query, local.key_value, local.ffn
    down = linear_seconds(device, t, h, f)
    gemm = (
        linear_seconds(device, t, q + 2 * kv, h)
        .plus(linear_seconds(device, t, h, q))
        .plus(linear_seconds(device, t, ups * f, h))
        .plus(down)
    )
    return LayerSeconds(
        gemm,
        down.forward,
        attention_seconds(decoder, layout, device, software),
        pointwise_seconds(decoder, layout, device, software),
        FALLBACK_KERNELS * softmax_falls_back(local, software),
    )


def head_seconds(decoder: Decoder, layout: Layout, device: Device, software: Software) -> Number:
    """Embedding, logits and loss of one micro-batch, forward and backward. [T7]"""
    local = Local.of(decoder, layout)
    product = linear_seconds(
        device, local.tokens, local.vocab, decoder.hidden_size, product=device.head_products
    )
    embedding = stream_seconds(
        device, EMBEDDING_BYTES * local.tokens * decoder.hidden_size, EMBEDDING_KERNELS
    )
    if software.counted is None:
        traffic = stream_seconds(
            device, software.logit_bytes * local.tokens * local.vocab, HEAD_KERNELS
        )
        return product.forward + product.backward + traffic + embedding
    head = software.counted.head
    reruns = 1 if software.counted.head_reruns else 0
    traffic = stream_seconds(
        device,
        (1 + reruns) * head.forward_bytes + head.backward_bytes,
        (1 + reruns) * head.forward_kernels + head.backward_kernels,
    )
    return (1 + reruns) * product.forward + product.backward + traffic + embedding
