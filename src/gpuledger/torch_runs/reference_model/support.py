"""What the reference model refuses because PyTorch has no such kernel, before it allocates."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.errors import InputError, Problem

FLASH_MAX_HEAD_DIM = 256  # FlashAttention-2 is compiled up to this head_dim
FLASH_HEAD_DIM_MULTIPLE = 8  # scaled_dot_product_attention pads to it, the bare operator does not


def refuse_unsupported(model: Model, training: Training) -> None:
    """Raises InputError with all problems of this combination."""
    problems = [
        *attention_problems(model, training),
        *position_problems(model, training),
        *structure_problems(model),
        *loss_problems(model, training),
    ]
    if problems:
        raise InputError.of(problems)


def attention_problems(model: Model, training: Training) -> Iterator[Problem]:
    kernel = training.attention
    if kernel in ("flash", "cudnn") and training.precision in ("fp32", "tf32"):
        yield Problem(
            f"attention {kernel} computes in 16 bit, precision is {training.precision}",
            "use attention: efficient, or a bf16 precision",
        )
    if kernel == "flash" and model.head_dim > FLASH_MAX_HEAD_DIM:
        yield Problem(
            f"attention flash takes head_dim up to {FLASH_MAX_HEAD_DIM}, not {model.head_dim}",
            "use attention: efficient",
        )
    if kernel == "flash" and model.positions == "alibi":
        yield Problem("attention flash takes no ALiBi bias in PyTorch", "use attention: efficient")
    if kernel != "eager" and model.attention_softcap is not None:
        yield Problem(
            f"attention {kernel} has no softcap, attention_softcap is {model.attention_softcap}",
            "use attention: eager",
        )
    windowed = any(model.window(layer) is not None for layer in range(model.num_layers))
    if kernel == "flash" and windowed and model.head_dim % FLASH_HEAD_DIM_MULTIPLE:
        yield Problem(
            f"flash with a sliding window needs head_dim in multiples of 8, not {model.head_dim}",
            "use attention: efficient",
        )


def position_problems(model: Model, training: Training) -> Iterator[Problem]:
    if model.positions == "learned" and training.seq_len > model.max_position_embeddings:
        yield Problem(
            f"seq_len {training.seq_len} is longer than the "
            f"{model.max_position_embeddings} learned positions",
            f"use seq_len {model.max_position_embeddings} or less",
        )
    if model.positions == "alibi" and model.sliding_window is not None:
        yield Problem(
            "positions: alibi together with sliding_window is not a known architecture",
            "leave out sliding_window",
        )
    rotary_dim = model.rotary_dim or model.head_dim
    if model.positions == "rotary" and (rotary_dim % 2 or rotary_dim > model.head_dim):
        yield Problem(
            f"rotary_dim {rotary_dim} must be even and at most head_dim {model.head_dim}",
            "choose an even rotary_dim",
        )


def structure_problems(model: Model) -> Iterator[Problem]:
    if model.num_heads % model.num_kv_heads:
        yield Problem(
            f"num_heads {model.num_heads} is not a multiple of num_kv_heads {model.num_kv_heads}",
            f"use a divisor of {model.num_heads}",
        )
    if model.qkv_projection == "fused" and model.bias.query != model.bias.key_value:
        yield Problem(
            "a fused qkv_projection has one bias, but bias.query and bias.key_value differ",
            "set both alike, or use qkv_projection: separate",
        )
    if model.shared_norm and not model.parallel_residual:
        yield Problem("shared_norm needs parallel_residual", "set parallel_residual: true")
    if model.parallel_residual and model.norm_position != "pre":
        yield Problem(
            f"parallel_residual goes with norm_position pre, not {model.norm_position}",
            "use norm_position: pre",
        )


def loss_problems(model: Model, training: Training) -> Iterator[Problem]:
    pieces = training.loss in ("chunked", "fused_linear")
    if pieces and training.keep_logits:
        yield Problem(
            f"loss {training.loss} never has the whole logits, so keep_logits cannot keep them",
            "use loss: cross_entropy, or keep_logits: false",
        )
    if training.loss == "fused_linear" and model.logits_softcap is not None:
        yield Problem("loss fused_linear has no softcap of the logits", "use loss: chunked")
