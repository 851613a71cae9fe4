"""From measured kernels to efficiency curves: the inverse of gemm.py, attention.py and
pointwise.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...errors import InputError
from .attention import BACKWARD_WORK, fused_seconds
from .gemm import product_seconds
from .inputs import AttentionRate, Decoder, Device, Layout, Product

SUSTAINED_GRID = tuple(0.60 + 0.01 * i for i in range(41))
TILE_GRID_SECONDS = tuple(0.2e-6 * i for i in range(51))
QUANTISATION_GRID = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0)


@dataclass(frozen=True)
class ProductSample:
    """One measured product (m, k) x (k, n)."""

    m: int
    n: int
    k: int
    seconds: float

    @property
    def flops_per_second(self) -> float:
        return 2 * self.m * self.n * self.k / self.seconds


@dataclass(frozen=True)
class ProductFit:
    """The GEMM curve of a datatype, and its mean absolute error on the samples it was fitted to."""

    best_flops_per_second: float
    sustained_share: float
    tile_seconds: float
    wave_quantisation: float
    mean_error: float


def fit_products(samples: Sequence[ProductSample], device: Device) -> ProductFit:
    """The curve of [T1] with the smallest mean absolute error, over a grid of its three numbers.

    The best product is the fastest sample. `device` gives multiprocessors, bandwidth, the shortest
    kernel and the operands' bytes. Raises InputError without samples.
    """
    import numpy as np

    if not samples:
        raise InputError("no matrix product was measured", "measure at least three shapes")
    best = max(sample.flops_per_second for sample in samples)
    measured = np.array([sample.seconds for sample in samples])
    m, n, k = (np.array([getattr(sample, name) for sample in samples]) for name in "mnk")
    share, tile, loss = (
        grid.reshape(-1, 1)
        for grid in np.meshgrid(SUSTAINED_GRID, TILE_GRID_SECONDS, QUANTISATION_GRID, indexing="ij")
    )
    product = Product(
        device.products.dense_peak_flops_per_second, best, device.products.operand_bytes
    )
    # The three numbers are columns of candidates here, the samples are rows of each.
    candidates = replace(device, sustained_share=share, tile_seconds=tile, wave_quantisation=loss)
    predicted = product_seconds(candidates, m, n, k, product=product)
    errors = np.abs(predicted / measured - 1).mean(axis=1)
    index = int(np.argmin(errors))
    return ProductFit(
        best,
        round(float(share[index, 0]), 4),
        float(tile[index, 0]),
        float(loss[index, 0]),
        float(errors[index]),
    )


@dataclass(frozen=True)
class AttentionSample:
    """One measured causal attention of `batch` sequences, forward and backward."""

    batch: int
    num_heads: int
    seq_len: int
    head_dim: int
    forward_seconds: float
    backward_seconds: float


def fit_attention(samples: Sequence[AttentionSample], device: Device) -> AttentionRate:
    """The ceilings of [T5]: the median over the samples of what each implies. Raises InputError."""
    if not samples:
        raise InputError("no attention kernel was measured", "measure at least one length")
    unlimited = replace(device, attention=AttentionRate(1.0, 1.0))
    forward, backward = [], []
    for sample in samples:
        ideal = fused_seconds(*shape_of(sample), unlimited)
        kernel = device.kernel_seconds
        forward.append((ideal.forward - kernel) / max(sample.forward_seconds - kernel, kernel))
        backward.append(
            (ideal.backward - 2 * kernel) / max(sample.backward_seconds - 2 * kernel, kernel)
        )
    return AttentionRate(min(median(forward), 1.0), min(median(backward), 1.0))


def shape_of(sample: AttentionSample) -> tuple[Decoder, Layout]:
    """A one-layer decoder that has this attention."""
    hidden = sample.num_heads * sample.head_dim
    decoder = Decoder(
        1,
        hidden,
        sample.num_heads,
        sample.num_heads,
        sample.head_dim,
        4 * hidden,
        1,
        sample.seq_len,
    )
    return decoder, Layout(1, sample.batch, sample.batch)


def attention_flops(sample: AttentionSample) -> tuple[float, float]:
    """FLOPs of its forward and backward pass under the mask. [T5]"""
    decoder, _ = shape_of(sample)
    forward = 4.0 * sample.batch * sample.num_heads * decoder.causal_pairs * sample.head_dim
    return forward, BACKWARD_WORK * forward


def share_of(measured: float, nominal: float) -> float:
    """Measured over nominal rate, at most 1, to four digits."""
    return round(min(measured / nominal, 1.0), 4)
