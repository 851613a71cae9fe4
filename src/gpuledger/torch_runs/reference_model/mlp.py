"""Feed-forward: up, nonlinearity, down; or gated (SwiGLU, GeGLU)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from gpuledger.config.model import Model


class MLP(nn.Module):
    """(b, s, h) -> (b, s, h) through ffn_hidden_size."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        h, f = model.hidden_size, model.ffn_hidden_size
        self.up = nn.Linear(h, f, bias=model.bias.mlp_up)
        self.down = nn.Linear(f, h, bias=model.bias.mlp_down)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(activate(self.up(x), self.model.activation))
        if self.model.dropout:
            y = F.dropout(y, self.model.dropout)
        return y


class GatedMLP(nn.Module):
    """activation(gate) * up, then down. (b, s, h) -> (b, s, h) through ffn_hidden_size."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        h, f = model.hidden_size, model.ffn_hidden_size
        if model.gate_up_projection == "fused":
            self.gate_up = nn.Linear(h, 2 * f, bias=model.bias.mlp_up)
        else:
            self.gate = nn.Linear(h, f, bias=model.bias.mlp_up)
            self.up = nn.Linear(h, f, bias=model.bias.mlp_up)
        self.down = nn.Linear(f, h, bias=model.bias.mlp_down)

    def forward(self, x: Tensor) -> Tensor:
        activation = self.model.activation
        if self.model.gate_up_projection == "fused":
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            y = self.down(activate(gate, activation) * up)
        else:
            y = self.down(activate(self.gate(x), activation) * self.up(x))
        if self.model.dropout:
            y = F.dropout(y, self.model.dropout)
        return y


def activate(x: Tensor, activation: str) -> Tensor:
    """The nonlinearity; of a gated MLP, that of the gate (GeGLU: GELU by tanh, as Gemma)."""
    if activation in ("silu", "swiglu"):
        return F.silu(x)
    if activation in ("gelu_tanh", "geglu"):
        return F.gelu(x, approximate="tanh")
    if activation == "gelu":
        return F.gelu(x)
    if activation == "squared_relu":
        return F.relu(x).square()
    return F.relu(x)


def mlp(model: Model) -> nn.Module:
    """The model's kind of MLP."""
    return GatedMLP(model) if model.gated else MLP(model)
