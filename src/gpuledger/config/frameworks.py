"""Options of the data-parallel frameworks; every default is the framework's own."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ..errors import Problem
from .record import Record

CastDtype = Literal["bfloat16"]
ReduceDtype = Literal["float32", "bfloat16"]


class DDPOptions(Record):
    """torch.nn.parallel.DistributedDataParallel."""

    bucket_cap_mb: int | None = Field(
        default=None, gt=0, le=10**6, description="MiB of a gradient bucket; null: 1, then 25"
    )
    gradient_as_bucket_view: bool = Field(
        default=False, description="gradients lie in the buckets, not beside them"
    )
    find_unused_parameters: bool = Field(
        default=False, description="looks for parameters without gradient in each step"
    )
    static_graph: bool = Field(default=False, description="the graph never changes")
    compression: Literal["none", "fp16", "bf16"] = Field(
        default="none", description="communication hook that casts each bucket"
    )


class ZeroRedundancyOptions(Record):
    """torch.distributed.optim.ZeroRedundancyOptimizer, on top of `ddp`."""

    parameters_as_bucket_view: bool = Field(
        default=False, description="parameters lie in one flat tensor per rank"
    )


class FSDP2Options(Record):
    """torch.distributed.fsdp.fully_shard, applied to every block and to the whole model."""

    reshard_after_forward: bool | None = Field(
        default=None,
        description="a block's parameters are freed after its forward; null: with zero_stage 3",
    )
    reshard_to: int | None = Field(
        default=None, gt=1, le=10**6,
        description="ranks over which they stay divided after forward (an int for "
        "reshard_after_forward)",
    )
    param_dtype: CastDtype | None = Field(
        default=None,
        description="MixedPrecisionPolicy: dtype of gathered parameters, instead of autocast",
    )
    reduce_dtype: ReduceDtype | None = Field(
        default=None, description="MixedPrecisionPolicy: dtype in which gradients are reduced"
    )
    replicate: int = Field(
        default=1, gt=0, le=10**6, description="copies of the sharded model (HSDP); divides dp"
    )
    forward_prefetch: int = Field(
        default=0, ge=0, le=100, description="blocks that are gathered ahead in forward"
    )
    backward_prefetch: int | None = Field(
        default=None, gt=0, le=100,
        description="blocks that are gathered ahead in backward; null: the next one",
    )
    max_reduce_scatter_inputs: int = Field(
        default=1, gt=0, le=100, description="set_reduce_scatter_max_input_buffers"
    )
    sync_every_micro_batch: bool = Field(
        default=True, description="false: set_requires_gradient_sync(False) but for the last one"
    )
    cpu_offload: bool = Field(
        default=False, description="CPUOffloadPolicy: parameters, gradients and states on the host"
    )

    def cross_field_problems(self) -> Iterator[Problem]:
        if self.reshard_to is not None and self.reshard_after_forward is False:
            yield Problem(
                f"reshard_to = {self.reshard_to}, but reshard_after_forward: false",
                "leave one of them out",
            )


class FSDP1Options(Record):
    """torch.distributed.fsdp.FullyShardedDataParallel around every block and the whole model."""

    param_dtype: CastDtype | None = Field(
        default=None, description="MixedPrecision: dtype of gathered parameters, not autocast"
    )
    reduce_dtype: ReduceDtype | None = Field(
        default=None, description="MixedPrecision: dtype in which gradients are reduced"
    )
    replicate: int = Field(
        default=1, gt=0, le=10**6, description="copies of the sharded model (HYBRID_SHARD)"
    )
    backward_prefetch: Literal["pre", "post", "none"] = Field(
        default="pre", description="when the next block is gathered in backward"
    )
    forward_prefetch: bool = Field(default=False, description="gather the next block in forward")
    use_orig_params: bool = Field(
        default=False, description="keeps the parameters as they were, each aligned to 16 bytes"
    )


class OffloadOptions(Record):
    """Where DeepSpeed keeps optimizer states or parameters."""

    device: Literal["none", "cpu"] = Field(default="none", description="none: on the GPU")
    pin_memory: bool = Field(default=False, description="in page-locked host memory")


class DeepSpeedOptions(Record):
    """`zero_optimization` of a ds_config.json; sizes count elements, not bytes."""

    reduce_bucket_size: int = Field(
        default=500_000_000, gt=0, le=10**12, description="elements of a gradient bucket"
    )
    allgather_bucket_size: int = Field(
        default=500_000_000, gt=0, le=10**12,
        description="elements of parameters gathered at a time after the update",
    )
    overlap_comm: bool | None = Field(
        default=None, description="reduce while backward runs; null: in stage 3 only"
    )
    contiguous_gradients: bool = Field(
        default=True, description="gradients are copied to one buffer as they are made"
    )
    stage3_prefetch_bucket_size: int = Field(
        default=50_000_000, ge=0, le=10**12, description="elements gathered ahead"
    )
    stage3_param_persistence_threshold: int = Field(
        default=100_000, ge=0, le=10**12,
        description="parameters of fewer elements stay gathered",
    )
    stage3_max_live_parameters: int = Field(
        default=1_000_000_000, ge=0, le=10**13, description="elements gathered at a time, at most"
    )
    stage3_max_reuse_distance: int = Field(
        default=1_000_000_000, ge=0, le=10**13,
        description="parameters stay gathered that are used again within so many elements",
    )
    sub_group_size: int = Field(
        default=1_000_000_000, gt=0, le=10**13, description="elements updated at a time in stage 3"
    )
    offload_optimizer: OffloadOptions = Field(
        default=OffloadOptions(), description="masters and optimizer states"
    )
    offload_param: OffloadOptions = Field(
        default=OffloadOptions(), description="parameters (stage 3)"
    )
