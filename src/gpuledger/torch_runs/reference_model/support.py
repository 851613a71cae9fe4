"""What the reference model refuses because PyTorch has no such kernel, before it allocates.

What no run may ask for is refused by the records; this is about PyTorch alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.errors import InputError, Problem

FLASH_HEAD_DIM_MULTIPLE = 8  # scaled_dot_product_attention pads to it, the bare operator does not


def refuse_unsupported(model: Model, training: Training) -> None:
    """Raises InputError with all problems of this combination."""
    problems = [*attention_problems(model, training), *loss_problems(model, training)]
    if problems:
        raise InputError.of(problems)


def attention_problems(model: Model, training: Training) -> Iterator[Problem]:
    """Masks, biases and head sizes that a kernel does not take."""
    flash, alibi = training.attention == "flash", model.positions == "alibi"
    if flash and alibi:
        yield Problem(
            "attention flash takes no ALiBi bias in PyTorch", "use attention: efficient or eager"
        )
    if alibi and model.sliding_window is not None:
        yield Problem(
            f"positions: alibi with sliding_window {model.sliding_window}: no kernel takes both",
            "leave out sliding_window",
        )
    if training.attention == "cudnn" and model.attention_dropout:
        yield Problem(
            f"PyTorch has no cuDNN attention with dropout, attention_dropout is "
            f"{model.attention_dropout}",
            "use attention: flash, or set model.attention_dropout: 0",
        )
    windowed = any(model.window(layer) is not None for layer in range(model.num_layers))
    if flash and windowed and model.head_dim % FLASH_HEAD_DIM_MULTIPLE:
        yield Problem(
            f"flash with a sliding window needs head_dim in multiples of 8, not {model.head_dim}",
            "use attention: efficient",
        )
    if model.qkv_projection == "fused" and model.bias.query != model.bias.key_value:
        yield Problem(
            "a fused qkv_projection has one bias, but bias.query and bias.key_value differ",
            "set both alike, or use qkv_projection: separate",
        )


def loss_problems(model: Model, training: Training) -> Iterator[Problem]:
    """Losses that never hold the whole logits, where the whole logits are asked for."""
    if training.loss in ("chunked", "fused_linear") and training.keep_logits:
        yield Problem(
            f"loss {training.loss} never has the whole logits, so keep_logits cannot keep them",
            "use loss: cross_entropy, or keep_logits: false",
        )
    if training.loss == "fused_linear" and model.logits_softcap is not None:
        yield Problem("loss fused_linear has no softcap of the logits", "use loss: chunked")
