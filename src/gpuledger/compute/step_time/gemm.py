"""Seconds of a matrix product: waves of tiles over the multiprocessors, or memory traffic."""

from __future__ import annotations

from typing import NamedTuple

from .arithmetic import Number, ceil, maximum
from .inputs import Device, Product

TILE_M, TILE_N = 256, 128
"""The tile of cuBLAS's large kernels; a product's edge is counted in halves of it, 128 x 128."""


class Passes(NamedTuple):
    """Seconds of one operator: forward, and backward split into the input's and the weight's
    gradient."""

    forward: Number
    input_gradient: Number
    weight_gradient: Number

    @property
    def backward(self) -> Number:
        return self.input_gradient + self.weight_gradient

    def plus(self, other: Passes) -> Passes:
        return Passes(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
        )


def softened_waves(tiles: Number, num_sms: int, quantisation: float) -> Number:
    """Waves of `tiles` over the multiprocessors, of whose idle last part a share is lost. [T1]"""
    waves = tiles / num_sms
    return waves + quantisation * (ceil(waves) - waves)


def product_seconds(
    device: Device,
    m: Number,
    n: Number,
    k: Number,
    *,
    batch: Number = 1,
    product: Product | None = None,
    out_bytes: int = 2,
) -> Number:
    """Seconds of `batch` products (m, k) x (k, n). [T1]

    Compute: waves x (a tile's FLOPs at the sustained rate of one multiprocessor + the tile's
    prologue and epilogue). Memory: operands and result at the sustained bandwidth. The larger of
    the two, and the shortest time a kernel takes at all.
    """
    kind = product or device.products
    sustained = device.sustained_share * kind.best_flops_per_second
    tiles = batch * ceil(m / TILE_N) * ceil(n / TILE_N) / 2
    waves = softened_waves(tiles, device.num_sms, device.wave_quantisation)
    tile_flops = 2.0 * TILE_M * TILE_N * k
    compute = waves * (tile_flops / (sustained / device.num_sms) + device.tile_seconds)
    moved_bytes = batch * (kind.operand_bytes * (m * k + k * n) + out_bytes * m * n)
    memory = moved_bytes / (device.bandwidth_share * device.bandwidth_bytes_per_second)
    return maximum(compute, memory) + device.kernel_seconds


def linear_seconds(
    device: Device,
    tokens: Number,
    outputs: Number,
    inputs: Number,
    *,
    batch: Number = 1,
    product: Product | None = None,
) -> Passes:
    """A linear layer: y = x W, then dx = dy W^T and dW = x^T dy. [T2]"""

    def seconds(m: Number, n: Number, k: Number) -> Number:
        return product_seconds(device, m, n, k, batch=batch, product=product)

    return Passes(
        seconds(tokens, outputs, inputs),
        seconds(tokens, inputs, outputs),
        seconds(inputs, outputs, tokens),
    )
