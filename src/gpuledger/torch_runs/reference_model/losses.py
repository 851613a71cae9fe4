"""From the final norm's output to the loss: whole logits, pieces, or fused with the product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gpuledger.errors import InputError

from .fused import cross_entropy as fused_cross_entropy


def softcap(logits: Tensor, cap: float | None) -> Tensor:
    """cap * tanh(logits / cap), or the logits themselves."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


def cross_entropy(logits: Tensor, targets: Tensor, *, fused: bool = False) -> Tensor:
    """(b, s, v) and (b, s) -> mean over tokens, a scalar. fused: the logits are overwritten."""
    if fused:
        return fused_cross_entropy(logits, targets, mean=True)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@dataclass(frozen=True)
class Pieces:
    """Of a chunked loss: the logits' softcap, how many pieces, and whose kernel."""

    cap: float | None
    chunks: int
    fused: bool


def chunked_cross_entropy(
    output: nn.Module, x: Tensor, targets: Tensor, settings: Pieces
) -> Tensor:
    """Each piece of the tokens is projected and compared under a checkpoint.

    One piece's logits live at a time, in the forward and in the backward pass.
    """
    pieces = x.view(-1, x.size(-1)).chunk(settings.chunks)
    piece_targets = targets.view(-1).chunk(settings.chunks)
    total = checkpoint(
        piece_loss, output, pieces[0], piece_targets[0], settings, use_reentrant=False
    )
    for i in range(1, len(pieces)):
        total = total + checkpoint(
            piece_loss, output, pieces[i], piece_targets[i], settings, use_reentrant=False
        )
    return total / targets.numel()


def piece_loss(output: nn.Module, x: Tensor, targets: Tensor, settings: Pieces) -> Tensor:
    """(tokens, h) and (tokens) -> summed loss, a scalar."""
    logits = softcap(output(x), settings.cap)
    if settings.fused:
        return fused_cross_entropy(logits, targets, mean=False)
    return F.cross_entropy(logits, targets, reduction="sum")


def fused_linear_cross_entropy(
    output: nn.Linear, x: Tensor, targets: Tensor, chunks: int
) -> Tensor:
    """PyTorch's own chunked product and loss. It knows no autocast.

    Gradients of hidden states and weight are formed in the forward pass, chunk by chunk.

    Raises:
        InputError: this PyTorch's linear_cross_entropy is missing or has no options (before 2.13).
    """
    if not hasattr(nn, "LinearCrossEntropyOptions"):
        raise InputError(
            f"loss: fused_linear needs PyTorch 2.13 or later, this is {torch.__version__}",
            "use loss: chunked, or a newer PyTorch",
        )
    tokens = targets.numel()
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=-(-tokens // chunks))
    return F.linear_cross_entropy(
        x.view(tokens, -1),
        output.weight,
        targets.view(-1),
        linear_bias=output.bias,
        options=options,
    )
