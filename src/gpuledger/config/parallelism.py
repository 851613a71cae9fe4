"""`Parallelism`: how a run is divided over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ..errors import Problem
from .frameworks import (
    DDPOptions,
    DeepSpeedOptions,
    FSDP1Options,
    FSDP2Options,
    ZeroRedundancyOptions,
)
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
# Which stages of ZeRO a framework has; the first is its default.
STAGES: dict[str, tuple[int, ...]] = {
    "single": (0,),
    "ddp": (0,),
    "dataparallel": (0,),
    "zero-redundancy-optimizer": (1,),
    "fsdp2": (3, 2),
    "fsdp1": (3, 2, 0),
    "deepspeed": (0, 1, 2, 3),
}
# Whose options each record holds.
OPTIONS: dict[str, tuple[str, ...]] = {
    "ddp": ("ddp", "zero-redundancy-optimizer"),
    "zero_redundancy": ("zero-redundancy-optimizer",),
    "fsdp2": ("fsdp2",),
    "fsdp1": ("fsdp1",),
    "deepspeed": ("deepspeed",),
}


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
    ddp: DDPOptions = Field(
        default=DDPOptions(), description="options of framework ddp, see below"
    )
    zero_redundancy: ZeroRedundancyOptions = Field(
        default=ZeroRedundancyOptions(),
        description="options of framework zero-redundancy-optimizer, see below",
    )
    fsdp2: FSDP2Options = Field(
        default=FSDP2Options(), description="options of framework fsdp2, see below"
    )
    fsdp1: FSDP1Options = Field(
        default=FSDP1Options(), description="options of framework fsdp1, see below"
    )
    deepspeed: DeepSpeedOptions = Field(
        default=DeepSpeedOptions(), description="options of framework deepspeed, see below"
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
        yield from self._framework_problems()

    def _framework_problems(self) -> Iterator[Problem]:
        stages = STAGES.get(self.framework or "")
        if stages and self.zero_stage not in stages:
            listed = " or ".join(str(stage) for stage in sorted(stages))
            yield Problem(
                f"zero_stage = {self.zero_stage}, but framework {self.framework} is stage {listed}",
                f"set zero_stage: {stages[0]}, or choose another framework",
            )
        for name, owners in OPTIONS.items():
            given = getattr(self, name) != type(self).model_fields[name].default
            if given and self.framework not in owners:
                yield Problem(
                    f"options of {name} are given, but framework is {self.framework or 'null'}",
                    f"set framework: {owners[0]}, or leave {name} out",
                )
        yield from self._sharding_problems()

    def _sharding_problems(self) -> Iterator[Problem]:
        """Copies of a sharded model divide the data-parallel ranks."""
        for name in ("fsdp2", "fsdp1"):
            copies = getattr(self, name).replicate
            if self.dp % copies:
                yield Problem(
                    f"{name}.replicate = {copies} does not divide dp = {self.dp}",
                    "use a divisor of dp",
                )
        ranks, fewer = self.dp // self.fsdp2.replicate, self.fsdp2.reshard_to
        if fewer is not None and (ranks % fewer or fewer >= ranks):
            yield Problem(
                f"fsdp2.reshard_to = {fewer} is no smaller divisor of the {ranks} ranks that "
                "share the parameters",
                "use a divisor, or leave it out",
            )
        keeps = self.fsdp2.reshard_after_forward
        if self.framework == "fsdp2" and keeps is not None and keeps != (self.zero_stage == 3):
            yield Problem(
                f"fsdp2.reshard_after_forward: {str(keeps).lower()} is not stage {self.zero_stage}",
                "set zero_stage: 3 where it is true, 2 where it is false",
            )
