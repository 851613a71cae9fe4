"""Decoder block: attention and MLP around the residual stream, norms where the model has them."""

from __future__ import annotations

from torch import Tensor, nn

from gpuledger.config.model import Model
from gpuledger.config.training import Training

from .attention import Attention
from .mlp import mlp
from .norm import norm
from .tables import Tables


class Block(nn.Module):
    """(b, s, h) -> (b, s, h)."""

    def __init__(self, model: Model, training: Training, layer: int):
        super().__init__()
        self.parallel, self.shared = model.parallel_residual, model.shared_norm
        self.position = model.norm_position
        self.attention_norm = norm(model, training)
        self.attention = Attention(model, training, layer)
        if self.position == "sandwich":
            self.attention_post_norm = norm(model, training)
        if not self.shared:
            self.mlp_norm = norm(model, training)
        self.mlp = mlp(model, training)
        self.fused_sum = training.kernels == "fused" and self.position != "post"
        if self.position == "sandwich":
            self.mlp_post_norm = norm(model, training)

    def forward(self, x: Tensor, tables: Tables) -> Tensor:
        if self.parallel:
            return self.in_parallel(x, tables)
        if self.fused_sum:
            return self.with_fused_sum(x, tables)
        if self.position == "post":
            x = x + self.attention_norm(self.attention(x, tables))
            return x + self.mlp_norm(self.mlp(x))
        if self.position == "sandwich":
            x = x + self.attention_post_norm(self.attention(self.attention_norm(x), tables))
            return x + self.mlp_post_norm(self.mlp(self.mlp_norm(x)))
        x = x + self.attention(self.attention_norm(x), tables)
        return x + self.mlp(self.mlp_norm(x))

    def with_fused_sum(self, x: Tensor, tables: Tables) -> Tensor:
        """With fused kernels the MLP's norm forms the sum that it reads."""
        if self.position == "sandwich":
            y, x = self.mlp_norm(
                self.attention_post_norm(self.attention(self.attention_norm(x), tables)), x)
            return x + self.mlp_post_norm(self.mlp(y))
        y, x = self.mlp_norm(self.attention(self.attention_norm(x), tables), x)
        return x + self.mlp(y)

    def in_parallel(self, x: Tensor, tables: Tables) -> Tensor:
        """Attention and MLP read the same x, through one shared norm or a norm each."""
        if self.shared:
            y = self.attention_norm(x)
            return x + self.attention(y, tables) + self.mlp(y)
        return x + self.attention(self.attention_norm(x), tables) + self.mlp(self.mlp_norm(x))
