"""How much of its peaks a GPU reaches: curves and rates, each with where it comes from.

A GPU's own record may hold what was measured on it (`gpuledger calibrate` writes such a file). What
it does not hold comes from presets/efficiency/, by architecture and by GPU.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field
from typing_extensions import Self

from ..errors import Problem
from .record import Record

Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0)]

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")


class AttentionCeiling(Record):
    """What a fused attention kernel reaches of the dense 16-bit peak, at head_dim 128."""

    forward: float = Field(gt=0, le=1, description="forward, share of the dense peak")
    backward: float = Field(gt=0, le=1, description="backward, share of the dense peak")


class Efficiency(Record):
    """Efficiency curves of one GPU or architecture. Null: not known here."""

    best_matmul_flops_per_second: dict[str, Rate] = Field(
        default={}, description="best measured matrix product by datatype, FLOP/s"
    )
    sustained_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="ceiling of the GEMM curve over the best measured product",
    )
    tile_seconds: float | None = Field(
        default=None, ge=0, le=1, description="prologue and epilogue of one 256x128 tile"
    )
    wave_quantisation: float | None = Field(
        default=None, ge=0, le=1, description="share of the last wave's idle time that is lost"
    )
    bandwidth_share: float | None = Field(
        default=None, gt=0, le=1, description="large copies over the nominal memory bandwidth"
    )
    kernel_seconds: float | None = Field(
        default=None, ge=0, le=1, description="the shortest kernel"
    )
    attention: dict[str, AttentionCeiling] = Field(
        default={}, description="fused attention kernels by generation"
    )
    attention_half_length: float | None = Field(
        default=None,
        ge=0,
        description="keys per query at which a fused kernel reaches half its ceiling",
    )
    link_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="large messages in the node over the link's nominal rate",
    )
    network_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="large messages between nodes over the network's nominal rate",
    )
    overlap_cost: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="share of hidden communication that computing loses to it",
    )
    host_seconds: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="CPU time to enqueue one kernel from PyTorch, autograd included",
    )
    measured_on: str | None = Field(
        default=None, description="machine, software and day of a calibration; null: none"
    )
    sources: dict[str, str] = Field(description="where each number comes from, by field")

    def cross_field_problems(self) -> Iterator[Problem]:
        for dtype in self.best_matmul_flops_per_second:
            if dtype not in DTYPES:
                yield Problem(
                    f"best_matmul_flops_per_second.{dtype}: no such datatype",
                    f"use one of {', '.join(DTYPES)}",
                )

    def over(self, base: Self) -> Self:
        """This one, and `base` where this one does not say."""
        given = {name: value for name, value in dict(self).items() if value is not None}
        for name in ("best_matmul_flops_per_second", "attention", "sources"):
            given[name] = {**getattr(base, name), **getattr(self, name)}
        return base.model_copy(update=given)


class Protocol(Record):
    """One of NCCL's protocols under one algorithm: seconds per collective and per step."""

    base_seconds: float = Field(ge=0, le=1, description="once per collective")
    link_seconds: float = Field(ge=0, le=1, description="per step over NVLink")
    network_seconds: float = Field(ge=0, le=1, description="per step between nodes")
    bandwidth_share: float = Field(
        gt=0, le=1, description="of the bandwidth that a large message reaches"
    )
    node_limit_bytes_per_second: float | None = Field(
        default=None, gt=0, description="most that the protocol reaches inside a node"
    )
    network_limit_bytes_per_second: float | None = Field(
        default=None, gt=0, description="most that the protocol reaches across nodes"
    )
    correction: list[Share] = Field(
        default=[], description="of the bandwidth, by doublings of 64 bytes"
    )


class Nccl(Record):
    """NCCL's own constants for rings and trees, by protocol."""

    ring: dict[str, Protocol]
    tree: dict[str, Protocol]
    source: str
