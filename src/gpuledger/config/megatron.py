"""Options of Megatron-LM, named after its launch arguments; every default is Megatron's own."""

from typing import Literal

from pydantic import Field

from .record import Record

StateDtype = Literal["float32", "bfloat16", "float16"]


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
    main_params_dtype: StateDtype = Field(
        default="float32", description="precision-aware optimizer: dtype of the main parameters"
    )
    main_grads_dtype: StateDtype = Field(
        default="float32", description="precision-aware optimizer: dtype of the main gradients"
    )
    exp_avg_dtype: StateDtype = Field(
        default="float32", description="precision-aware optimizer: dtype of the first moment"
    )
    exp_avg_sq_dtype: StateDtype = Field(
        default="float32", description="precision-aware optimizer: dtype of the second moment"
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
    attention_mask_in_dataloader: bool = Field(
        default=True, description="each micro-batch has a mask of seq_len^2 bytes per sequence"
    )
    cross_entropy_loss_fusion: bool = Field(
        default=False, description="the compiled cross-entropy, with one fp32 copy more"
    )
    defer_embedding_wgrad_compute: bool = Field(
        default=False, description="the head's weight gradient is formed at the end of the step"
    )
    wgrad_deferral_limit: int = Field(
        default=0, ge=0, le=10**6, description="micro-batches whose head waits so; 0: all"
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
