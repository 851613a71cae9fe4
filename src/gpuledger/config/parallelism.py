"""`Parallelism`: how a run is divided over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ..errors import Problem
from .fields import Field
from .record import Record

Framework = Literal[
    "single",
    "ddp",
    "dataparallel",
    "zero-redundancy-optimizer",
    "fsdp2",
    "fsdp1",
    "deepspeed",
    "megatron",
]


class Parallelism(Record):
    """Sizes of the mesh's axes. `dp` may be left out of a file: it is gpus / (tp pp cp)."""

    dp: int = Field(default=1, gt=0, le=10**6, description="data-parallel ranks")
    tp: int = Field(default=1, gt=0, le=10**4, description="tensor-parallel ranks")
    pp: int = Field(default=1, gt=0, le=10**4, description="pipeline stages")
    vpp: int = Field(default=1, gt=0, le=10**4, description="model chunks of each pipeline stage")
    cp: int = Field(default=1, gt=0, le=10**4, description="context-parallel ranks")
    ep: int = Field(default=1, gt=0, le=10**4, description="expert-parallel ranks")
    sequence_parallel: bool = Field(
        default=False, description="norms and residual stream are split over tp along the sequence"
    )
    zero_stage: int = Field(
        default=0,
        ge=0,
        le=3,
        description="what dp divides: 1 optimizer states, 2 and gradients, 3 and parameters",
    )
    framework: Framework | None = Field(
        default=None,
        description="who divides it; null: the states alone, without a framework's buffers",
    )

    @property
    def world_size(self) -> int:
        """Number of GPUs that one copy of this mesh needs."""
        return self.dp * self.tp * self.pp * self.cp

    def cross_field_problems(self) -> Iterator[Problem]:
        if self.vpp > 1 and self.pp == 1:
            yield Problem(
                f"vpp = {self.vpp} splits pipeline stages, but pp = 1 has none",
                "raise pp, or leave vpp out",
            )
        if self.sequence_parallel and self.tp == 1:
            yield Problem(
                "sequence_parallel: true splits over tp, but tp = 1",
                "raise tp, or leave sequence_parallel out",
            )
