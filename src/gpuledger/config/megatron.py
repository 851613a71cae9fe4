"""Options of Megatron-LM, named after its launch arguments; every default is Megatron's own."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from ..errors import Problem
from .record import Record

StateDtype = Literal["float32", "bfloat16", "float16"]
RecomputeModule = Literal["core_attn", "mlp", "layernorm"]
# Dtypes that only the precision-aware optimizer may change.
AWARE = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


class MegatronOptions(Record):
    """What a launch of pretrain_gpt.py says beside model, batch and mesh. zero_stage: 1 is
    --use-distributed-optimizer."""

    transformer_impl: Literal["transformer_engine", "local"] = Field(
        default="transformer_engine", description="whose layers"
    )
    params_dtype: Literal["bfloat16", "float16"] = Field(
        default="bfloat16", description="--bf16 or --fp16 (with loss scaling); precision: bf16-master"
    )
    make_vocab_size_divisible_by: int = Field(
        default=128, gt=0, le=10**6, description="times tp: the vocabulary is padded to it"
    )
    overlap_grad_reduce: bool = Field(
        default=False, description="gradient buckets are reduced while backward runs"
    )
    distributed_optimizer_instances: int = Field(
        default=1, gt=0, le=10**6, description="copies of the distributed optimizer"
    )
    pad_buckets_for_high_nccl_busbw: bool = Field(
        default=False, description="bucket ends are multiples of 2^16 elements too"
    )
    reduce_gradients_in_16_bit: bool = Field(
        default=False, description="--grad-reduce-in-bf16: main gradients are not fp32"
    )
    accumulate_allreduce_grads_in_fp32: bool = Field(
        default=False, description="main gradients are fp32 with fp16 too; with bf16 they always are"
    )
    use_precision_aware_optimizer: bool = Field(
        default=False, description="Transformer Engine's Adam on states of other dtypes"
    )
    store_param_remainders: bool = Field(
        default=True,
        description="precision-aware, bf16: the main parameters' lower 16 bits alone are kept",
    )
    main_params_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="precision-aware optimizer: dtype of the main parameters"
    )
    main_grads_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="precision-aware optimizer: dtype of the main gradients"
    )
    exp_avg_dtype: StateDtype = Field(
        default="float32", description="precision-aware optimizer: dtype of the first moment"
    )
    exp_avg_sq_dtype: StateDtype = Field(
        default="float32", description="precision-aware optimizer: dtype of the second moment"
    )
    recompute_method: Literal["uniform", "block"] = Field(
        default="uniform",
        description="recompute: full: uniform keeps the input of each group of layers, block that of "
        "each of a chunk's first layers",
    )
    recompute_num_layers: int = Field(
        default=1, gt=0, le=10**6, description="layers of a group, or recomputed layers of a chunk"
    )
    recompute_modules: tuple[RecomputeModule, ...] = Field(
        default=("core_attn",), description="recompute: selective: what is run again"
    )
    account_for_embedding: bool = Field(
        default=False, description="--account-for-embedding-in-pipeline-split"
    )
    account_for_loss: bool = Field(
        default=False, description="--account-for-loss-in-pipeline-split"
    )
    microbatch_group_size: int | None = Field(
        default=None,
        gt=0,
        le=10**6,
        description="--microbatch-group-size-per-virtual-pipeline-stage; null: pp",
    )
    overlap_p2p_communication: bool = Field(
        default=True, description="interleaved: the next input is received before the backward"
    )
    overlap_p2p_communication_warmup_flush: bool = Field(
        default=False, description="interleaved: inputs are received ahead in warm-up and flush too"
    )
    attention_mask_in_dataloader: bool = Field(
        default=True, description="each micro-batch has a mask of seq_len^2 bytes per sequence"
    )
    cross_entropy_loss_fusion: bool = Field(
        default=False, description="the compiled cross-entropy, with one fp32 copy more"
    )
    cross_entropy_fusion_impl: Literal["native", "te"] = Field(
        default="native",
        description="whose fused cross-entropy: Megatron's, compiled, or Transformer Engine's, which "
        "overwrites the logits (releases up to 2026-07)",
    )
    defer_embedding_wgrad_compute: bool = Field(
        default=False, description="the head's weight gradient is formed at the end of the step"
    )
    wgrad_deferral_limit: int = Field(
        default=0, ge=0, le=10**6, description="micro-batches whose head waits so; 0: all"
    )
    keeps_deferred_gradient: bool = Field(
        default=True, description="releases from 2025-11 on keep the last gradient formed so"
    )
    softmax_in_float32: bool = Field(
        default=False,
        description="local attention without fused softmax computes and keeps it in fp32",
    )
    cublas_workspace_bytes: int | None = Field(
        default=None, gt=0, le=2**40, description="CUBLAS_WORKSPACE_CONFIG; null: by GPU"
    )
    engine_workspace_bytes: int | None = Field(
        default=None, gt=0, le=2**40, description="Transformer Engine's GEMM workspace; null: by GPU"
    )
    keeps_batches: bool = Field(
        default=False,
        description="releases of 2026-05-21 to 2026-07-06 keep the micro-batches of a step",
    )
    old_transformer_engine: bool = Field(
        default=False,
        description="before #719 (2024-04): fused linears keep the bias they were made with",
    )

    @classmethod
    def prepared(cls, values: Any) -> Any:
        """A list of a file is a tuple here."""
        if isinstance(values, dict) and isinstance(values.get("recompute_modules"), list):
            return values | {"recompute_modules": tuple(values["recompute_modules"])}
        return values

    def cross_field_problems(self) -> Iterator[Problem]:
        narrow = [name for name in AWARE if getattr(self, name) != "float32"]
        if narrow and not self.use_precision_aware_optimizer:
            yield Problem(
                f"megatron.{narrow[0]} = {getattr(self, narrow[0])}, but only the precision-aware "
                "optimizer has other dtypes than float32",
                "set megatron.use_precision_aware_optimizer: true",
            )
        if self.accumulate_allreduce_grads_in_fp32 and self.main_grads_dtype != "float32":
            yield Problem(
                "megatron.accumulate_allreduce_grads_in_fp32 with main_grads_dtype = bfloat16",
                "leave one of them out",
            )
        if self.reduce_gradients_in_16_bit and self.accumulate_allreduce_grads_in_fp32:
            yield Problem(
                "megatron.reduce_gradients_in_16_bit with accumulate_allreduce_grads_in_fp32",
                "leave one of them out",
            )
        if self.wgrad_deferral_limit and not self.defer_embedding_wgrad_compute:
            yield Problem(
                f"megatron.wgrad_deferral_limit = {self.wgrad_deferral_limit} has no effect without "
                "defer_embedding_wgrad_compute",
                "set megatron.defer_embedding_wgrad_compute: true",
            )
