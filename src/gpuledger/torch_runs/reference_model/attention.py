"""Causal self-attention: projections, norms and rotation of queries and keys, core, output."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpuledger.config.fused_kernels import FusedKernels
from gpuledger.config.model import Model
from gpuledger.config.training import Training

from .attention_kernels import Core, core
from .fused import drop, rotate_in_place
from .norm import norm
from .tables import Tables


class Attention(nn.Module):
    """(b, s, h) -> (b, s, h)."""

    def __init__(self, model: Model, training: Training, layer: int):
        super().__init__()
        self.model = model
        self.settings = Core.of_layer(model, training, layer)
        self.recompute_core = training.recompute == "selective"
        self.fused = training.kernels == "fused"
        one_matrix = model.qkv_projection == "fused"
        self.project = (FusedProjection if one_matrix else SeparateProjections)(model, training)
        width = model.num_heads * model.head_dim
        self.out = nn.Linear(width, model.hidden_size, bias=model.bias.attention_out)

    def forward(self, x: Tensor, tables: Tables) -> Tensor:
        query, key, value = self.project(x, tables)
        if self.model.positions == "rotary" and not self.fused:
            query = rotate(query, tables.cos, tables.sin)
            key = rotate(key, tables.cos, tables.sin)
        if self.model.num_kv_heads != self.model.num_heads:
            key, value = self.repeat(key), self.repeat(value)
        y = self.core(query, key, value, tables)
        b, a, s, d = query.shape
        y = y.transpose(1, 2).contiguous().view(b, s, a * d)
        y = self.out(y)
        if self.model.dropout:
            y = drop(y, self.model.dropout, fused=self.fused)
        return y

    def core(self, query: Tensor, key: Tensor, value: Tensor, tables: Tables) -> Tensor:
        """(b, a, s, d) x3 -> (b, a, s, d)."""
        alibi = tables.alibi if self.model.positions == "alibi" else None
        arguments = (query, key, value, self.settings, self.mask(tables), alibi)
        if self.recompute_core:
            y: Tensor = checkpoint(core, *arguments, use_reentrant=False)
            return y
        return core(*arguments)

    def mask(self, tables: Tables) -> Tensor | None:
        """The mask that this layer's kernel reads, if any."""
        windowed = self.settings.window is not None
        if self.settings.kernel == "eager":
            return tables.window_mask if windowed else tables.mask
        return tables.visible_window if windowed and self.settings.kernel != "flash" else None

    def repeat(self, x: Tensor) -> Tensor:
        """(b, kv, s, d) -> (b, a, s, d). One head stays a view, expanded by a stride of zero."""
        b, kv, s, d = x.shape
        groups = self.model.num_heads // self.model.num_kv_heads
        return x[:, :, None].expand(b, kv, groups, s, d).reshape(b, kv * groups, s, d)


def projection_widths(model: Model) -> tuple[int, int]:
    """Output features of the query projection, and of the key and of the value projection."""
    return model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim


class FusedProjection(nn.Module):
    """One matrix; query, key and value are views of its output.

    (b, s, h) -> query (b, a, s, d), key and value (b, kv, s, d).
    """

    def __init__(self, model: Model, training: Training):
        super().__init__()
        self.model = model
        query_width, key_width = projection_widths(model)
        self.sizes = [query_width, key_width, key_width]
        self.qkv = nn.Linear(model.hidden_size, sum(self.sizes), bias=model.bias.query)
        self.query_heads = Heads(model, training, model.num_heads)
        self.key_heads = Heads(model, training, model.num_kv_heads)
        self.rotates = FusedKernels.of(model, training).rotary and model.qk_norm == "none"
        self.query_heads.rotates &= not self.rotates
        self.key_heads.rotates &= not self.rotates

    def forward(self, x: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(x)
        ranks = sum(self.sizes) // qkv.size(2)               # that divide the columns
        query, key, value = self.rotated(qkv, tables).split(
            [size // ranks for size in self.sizes], dim=2)
        query = self.query_heads(query, tables)
        key = self.key_heads(key, tables)
        value = split_heads(value, self.model.head_dim)
        return query, key, value

    def rotated(self, qkv: Tensor, tables: Tables) -> Tensor:
        """The fused kernel turns queries and keys inside the one tensor, before norms would."""
        if not self.rotates:
            return qkv
        heads = self.model.num_heads + self.model.num_kv_heads
        return rotate_in_place(qkv, tables.cos, tables.sin, self.model.head_dim, heads)


class SeparateProjections(nn.Module):
    """Three matrices. (b, s, h) -> query (b, a, s, d), key and value (b, kv, s, d)."""

    def __init__(self, model: Model, training: Training):
        super().__init__()
        self.model = model
        h, bias = model.hidden_size, model.bias
        query_width, key_width = projection_widths(model)
        self.query = nn.Linear(h, query_width, bias=bias.query)
        self.key = nn.Linear(h, key_width, bias=bias.key_value)
        self.value = nn.Linear(h, key_width, bias=bias.key_value)
        self.query_heads = Heads(model, training, model.num_heads)
        self.key_heads = Heads(model, training, model.num_kv_heads)

    def forward(self, x: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        query = self.query_heads(self.query(x), tables)
        key = self.key_heads(self.key(x), tables)
        value = split_heads(self.value(x), self.model.head_dim)
        return query, key, value


class Heads(nn.Module):
    """Splits queries or keys into heads; qk_norm comes before (`full`) or per head (`head`).

    rotates: turns them in place, after the norm.
    """

    def __init__(self, model: Model, training: Training, num_heads: int):
        super().__init__()
        self.head_dim, self.qk_norm, self.num_heads = model.head_dim, model.qk_norm, num_heads
        self.rotates = FusedKernels.of(model, training).rotary
        if model.qk_norm != "none":
            width = model.head_dim if model.qk_norm == "head" else num_heads * model.head_dim
            self.norm = norm(model, training, width)

    def forward(self, x: Tensor, tables: Tables) -> Tensor:
        if self.qk_norm == "full":
            x = self.norm(x)
        if self.qk_norm == "head":
            b, s, _ = x.shape
            return self.rotated(self.norm(x.view(b, s, -1, self.head_dim)), tables).transpose(1, 2)
        return split_heads(self.rotated(x, tables), self.head_dim)

    def rotated(self, x: Tensor, tables: Tables) -> Tensor:
        if not self.rotates:
            return x
        return rotate_in_place(x, tables.cos, tables.sin, self.head_dim, self.num_heads)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(b, s, n d) -> (b, n, s, d), a view."""
    b, s, _ = x.shape
    return x.view(b, s, -1, head_dim).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on (b, a, s, d), half-rotation form; the tables say how many dims of d are rotated."""
    rotary_dim = cos.size(-1)
    if rotary_dim < x.size(-1):
        turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
        return torch.cat((rotate(turned, cos, sin), kept), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
