"""From a GPU's record to a `Device`: peaks of the datatype, links, and the efficiency curves."""

from __future__ import annotations

from typing import Any

from ...config.cluster import Gpu
from ...config.efficiency import AttentionCeiling, Efficiency
from ...errors import InputError
from .curves import MATMUL_SHARE, architecture_of, data, efficiency_of, nccl
from .inputs import AttentionRate, Device, Product

CURVES = (
    "sustained_share",
    "tile_seconds",
    "wave_quantisation",
    "bandwidth_share",
    "kernel_seconds",
    "attention_half_length",
    "link_share",
    "network_share",
    "overlap_cost",
)
OPERAND_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


def device_of_gpu(
    gpu: Gpu, dtype: str, attention_kernel: str, network_bytes_per_second: float | None = None
) -> Device:
    """The device for products of `dtype` and a fused attention kernel of this generation.

    Raises InputError, with all that is missing, where the GPU's record does not say enough.
    """
    efficiency = efficiency_of(gpu)
    bandwidth, num_sms = gpu.bandwidth_bytes_per_second, gpu.num_sms
    if bandwidth is None or num_sms is None:
        field = "num_sms" if num_sms is None else "bandwidth_bytes_per_second"
        raise InputError(
            f"{gpu.name}: {field} is not known, so there is no step time",
            f"set cluster.gpu.{field}",
        )
    sixteen_bit = dtype if dtype != "fp8" else "bf16"
    ceiling = attention_ceiling(efficiency, attention_kernel, gpu.name)
    curves: dict[str, Any] = {name: getattr(efficiency, name) for name in CURVES}
    return Device(
        num_sms=num_sms,
        bandwidth_bytes_per_second=bandwidth,
        link_bytes_per_second=(gpu.link_bytes_per_second or NO_LINK) / 2,
        network_bytes_per_second=network_bytes_per_second or usual_network(gpu),
        products=product_of(gpu, efficiency, dtype),
        head_products=product_of(gpu, efficiency, sixteen_bit),
        attention=AttentionRate(ceiling.forward, ceiling.backward),
        nccl=nccl(),
        **curves,
    )


NO_LINK = 63e9
"""PCIe 4.0 x16, both directions: what a GPU has whose record names no link."""


def product_of(gpu: Gpu, efficiency: Efficiency, dtype: str) -> Product:
    """Peak and best measured product of a datatype; unmeasured, the share that an A100 reaches."""
    peak: float | None = getattr(gpu.dense_peak_flops_per_second, dtype)
    if peak is None:
        raise InputError(
            f"the dense {dtype} peak of {gpu.name} is not known, so there is no step time",
            f"set dense_peak_flops_per_second.{dtype} of the GPU, without sparsity",
        )
    best = efficiency.best_matmul_flops_per_second.get(dtype, MATMUL_SHARE * peak)
    return Product(peak, best, OPERAND_BYTES[dtype])


def attention_ceiling(efficiency: Efficiency, kernel: str, gpu: str) -> AttentionCeiling:
    """The ceiling of a fused kernel; an unfused core has none that is used."""
    if kernel == "unfused":
        return AttentionCeiling(forward=1.0, backward=1.0)
    if kernel not in efficiency.attention:
        raise InputError(
            f"nothing is known of the attention kernel {kernel} on {gpu}",
            f"known there: {', '.join(efficiency.attention)}",
        )
    return efficiency.attention[kernel]


def usual_network(gpu: Gpu) -> float:
    """What a node of the GPU's generation usually has per GPU, one direction, bytes/s."""
    return float(data("gpus")["usual_network_bytes_per_second"][architecture_of(gpu)])
