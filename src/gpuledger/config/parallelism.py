"""`Parallelism`: how a run is divided over ranks."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from ..errors import Problem
from .frameworks import (
    DDPOptions,
    DeepSpeedOptions,
    FSDP1Options,
    FSDP2Options,
    ZeroRedundancyOptions,
)
from .megatron import MegatronOptions
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
ModelParallel = Literal["megatron", "torch"]
Schedule = Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe"]
CHUNKS: dict[str, int] = {"zb-v": 2, "dualpipe": 2}  # model chunks of a stage that a schedule has
# Which stages of ZeRO a framework has; the first is its default.
STAGES: dict[str, tuple[int, ...]] = {
    "single": (0,),
    "ddp": (0,),
    "dataparallel": (0,),
    "zero-redundancy-optimizer": (1,),
    "fsdp2": (3, 2),
    "fsdp1": (3, 2, 0),
    "deepspeed": (0, 1, 2, 3),
    "megatron": (0, 1),
}
# Whose options each record holds.
OPTIONS: dict[str, tuple[str, ...]] = {
    "ddp": ("ddp", "zero-redundancy-optimizer"),
    "zero_redundancy": ("zero-redundancy-optimizer",),
    "fsdp2": ("fsdp2",),
    "fsdp1": ("fsdp1",),
    "deepspeed": ("deepspeed",),
    "megatron": ("megatron",),
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
    model_parallel: ModelParallel | None = Field(
        default=None,
        description="whose tensor-parallel linears and pipeline: Megatron's, or PyTorch's "
        "(DTensor, torch.distributed.pipelining); null: PyTorch's with ddp, fsdp1 and fsdp2, else Megatron's",
    )
    context_exchange: Literal["ring", "all-gather"] = Field(
        default="ring", description="how context-parallel ranks see each other's keys and values"
    )
    cp_rank: int | None = Field(
        default=None, ge=0, le=10**4,
        description="context-parallel rank that is looked at; null: the one that needs most",
    )
    schedule: Schedule | None = Field(
        default=None,
        description="order of the pipeline's passes; null: interleaved where vpp > 1, else 1f1b",
    )
    stage_layers: tuple[Annotated[int, Field(gt=0)], ...] | None = Field(
        default=None,
        description="blocks of each pipeline stage; null: as even as they divide, the rest on "
        "middle stages",
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
    ddp: DDPOptions = Field(default=DDPOptions(), description="options of framework ddp, see below")
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
    megatron: MegatronOptions = Field(
        default=MegatronOptions(), description="options of framework megatron, see below"
    )

    @classmethod
    def prepared(cls, values: Any) -> Any:
        """A list of a file is a tuple here."""
        if isinstance(values, dict) and isinstance(values.get("stage_layers"), list):
            return values | {"stage_layers": tuple(values["stage_layers"])}
        return values

    @property
    def model_parallel_library(self) -> ModelParallel:
        """Whose tensor-parallel linears and pipeline."""
        if self.model_parallel is not None:
            return self.model_parallel
        return "torch" if self.framework in ("ddp", "fsdp1", "fsdp2") else "megatron"

    @property
    def pipeline_schedule(self) -> Schedule:
        """The order of the pipeline's passes."""
        return self.schedule or ("interleaved" if self.vpp > 1 else "1f1b")

    @property
    def chunks(self) -> int:
        """Model chunks of each stage."""
        return CHUNKS.get(self.pipeline_schedule, self.vpp)

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
        if self.cp_rank is not None and self.cp_rank >= self.cp:
            yield Problem(
                f"cp_rank = {self.cp_rank}, but there are cp = {self.cp} ranks",
                f"use 0 to {self.cp - 1}, or leave cp_rank out",
            )
        yield from self._pipeline_problems()
        yield from self._framework_problems()

    def _pipeline_problems(self) -> Iterator[Problem]:
        name = self.pipeline_schedule
        if self.schedule is not None and self.pp == 1:
            yield Problem(
                f"schedule: {name} orders pipeline stages, but pp = 1 has none",
                "raise pp, or leave schedule out",
            )
        elif (name == "interleaved") != (self.vpp > 1) and self.vpp != CHUNKS.get(name, 1):
            yield Problem(
                f"schedule: {name} does not go with vpp = {self.vpp}",
                "schedule: interleaved has vpp > 1; the others have vpp = 1",
            )
        if name == "dualpipe" and self.pp % 2:
            yield Problem(
                f"schedule: dualpipe pairs its stages, but pp = {self.pp} is odd", "use an even pp"
            )
        if self.stage_layers is not None and len(self.stage_layers) != self.pp:
            yield Problem(
                f"stage_layers names {len(self.stage_layers)} stages, but pp = {self.pp}",
                "name the blocks of each stage",
            )

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
