"""Feed-forward: up, nonlinearity, down; or gated (SwiGLU, GeGLU)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from gpuledger.config.fused_kernels import FusedKernels
from gpuledger.config.model import Model
from gpuledger.config.training import Training

from .fused import bias_gelu_linear, drop, swiglu, swiglu_linear


class MLP(nn.Module):
    """(b, s, h) -> (b, s, h) through ffn_hidden_size."""

    def __init__(self, model: Model, kernels: FusedKernels):
        super().__init__()
        self.model, self.kernels = model, kernels
        h, f = model.hidden_size, model.ffn_hidden_size
        self.up = nn.Linear(h, f, bias=model.bias.mlp_up)
        self.down = nn.Linear(f, h, bias=model.bias.mlp_down)

    def forward(self, x: Tensor) -> Tensor:
        if self.kernels.activation == "bias_gelu_linear":
            tanh = self.model.activation == "gelu_tanh"
            y = bias_gelu_linear(F.linear(x, self.up.weight), self.up.bias, self.down, tanh=tanh)
        else:
            y = self.down(activate(self.up(x), self.model.activation))
        if self.model.dropout:
            y = drop(y, self.model.dropout, fused=self.kernels.dropout)
        return y


class GatedMLP(nn.Module):
    """activation(gate) * up, then down. (b, s, h) -> (b, s, h) through ffn_hidden_size."""

    def __init__(self, model: Model, kernels: FusedKernels):
        super().__init__()
        self.model, self.kernels = model, kernels
        h, f = model.hidden_size, model.ffn_hidden_size
        if model.gate_up_projection == "fused":
            self.gate_up = nn.Linear(h, 2 * f, bias=model.bias.mlp_up)
        else:
            self.gate = nn.Linear(h, f, bias=model.bias.mlp_up)
            self.up = nn.Linear(h, f, bias=model.bias.mlp_up)
        self.down = nn.Linear(f, h, bias=model.bias.mlp_down)

    def forward(self, x: Tensor) -> Tensor:
        activation, fused = self.model.activation, self.kernels.activation is not None
        if self.model.gate_up_projection == "fused":
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            y = self.product(gate, up) if fused else self.down(activate(gate, activation) * up)
        elif fused:
            y = self.product(self.gate(x), self.up(x))
        else:
            y = self.down(activate(self.gate(x), activation) * self.up(x))
        if self.model.dropout:
            y = drop(y, self.model.dropout, fused=self.kernels.dropout)
        return y

    def product(self, gate: Tensor, up: Tensor) -> Tensor:
        """SwiGLU and down by fused kernels; a down-projection with a bias stays PyTorch's."""
        if self.kernels.activation == "swiglu_linear":
            return swiglu_linear(gate, up, self.down)
        y: Tensor = self.down(swiglu(gate, up))
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


def mlp(model: Model, training: Training) -> nn.Module:
    """The model's kind of MLP."""
    kernels = FusedKernels.of(model, training)
    return GatedMLP(model, kernels) if model.gated else MLP(model, kernels)
