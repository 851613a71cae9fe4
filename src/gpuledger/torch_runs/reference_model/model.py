"""Embedding, decoder blocks, head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpuledger.config.model import Model
from gpuledger.config.training import EveryK, Training

from .block import Block
from .checkpoints import contexts_of, offloading
from .embedding import Embedding
from .fused import fused_ops
from .head import Head
from .support import refuse_unsupported
from .tables import Tables

INITIAL_STD = 0.02


class LanguageModel(nn.Module):
    """Tokens and targets (b, s) -> the loss; with keep_logits (loss, logits).

    Weights take the current default dtype and device; set both around the call.

    Raises:
        InputError: a combination of options that PyTorch has no kernel for.
    """

    def __init__(self, model: Model, training: Training):
        super().__init__()
        refuse_unsupported(model, training)
        if training.kernels == "fused" and torch.get_default_device().type != "meta":
            fused_ops()  # built before anything is allocated
        self.recompute, self.offload = training.recompute, training.offload
        self.embedding = Embedding(model, training)
        self.blocks = nn.ModuleList(
            Block(model, training, layer) for layer in range(model.num_layers)
        )
        self.head = Head(model, training)
        if model.tie_embeddings:
            self.head.output.weight = self.embedding.token.weight
        self.tables = Tables(model, training)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=INITIAL_STD)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        tables = self.tables
        x = self.embedding(tokens, tables)
        for layer, block in enumerate(self.blocks):
            if recomputes(self.recompute, layer):
                with offloading(self.offload):
                    x = checkpoint(block, x, tables, use_reentrant=False,
                                   context_fn=contexts_of(self.recompute))
            else:
                x = block(x, tables)
        return self.head(x, targets)


def recomputes(recompute: str | EveryK, layer: int) -> bool:
    """This whole block is run again in the backward pass."""
    if isinstance(recompute, EveryK):
        return layer % recompute.every == 0
    return recompute in ("full", "per_op")
