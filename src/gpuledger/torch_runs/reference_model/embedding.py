"""Token embedding, its scale, learned positions, its norm and its dropout."""

from __future__ import annotations

import math

from torch import Tensor, nn

from gpuledger.config.model import Model
from gpuledger.config.training import Training

from .fused import drop
from .norm import norm
from .tables import Tables


class Embedding(nn.Module):
    """Tokens (b, s) -> (b, s, h)."""

    def __init__(self, model: Model, training: Training):
        super().__init__()
        self.model, self.fused = model, training.kernels == "fused"
        self.token = nn.Embedding(model.vocab_size, model.hidden_size)
        if model.positions == "learned":
            rows = model.max_position_embeddings + model.learned_position_offset
            self.position = nn.Embedding(rows, model.hidden_size)
        if model.embedding_norm:
            self.norm = norm(model, training)

    def forward(self, tokens: Tensor, tables: Tables) -> Tensor:
        model = self.model
        x: Tensor = self.token(tokens)
        if model.embedding_scale:
            x = x * math.sqrt(model.hidden_size)
        if model.positions == "learned":
            x = x + self.position(tables.positions)
        if model.embedding_norm:
            x = self.norm(x)
        if model.embedding_dropout:
            x = drop(x, model.embedding_dropout, fused=self.fused)
        return x
