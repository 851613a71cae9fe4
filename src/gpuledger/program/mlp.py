"""Feed-forward: up, nonlinearity, down; or gated (SwiGLU, GeGLU)."""
from __future__ import annotations

from gpuledger.config.model import Model

from . import operators as op
from . import views
from .local import Local
from .program import Tape
from .tensor import Tensor


def mlp(tape: Tape, x: Tensor, model: Model, local: Local) -> Tensor:
    """(b, s, h) -> (b, s, h) through ffn_hidden_size."""
    with tape.part("mlp", x):
        y = gated(tape, x, model, local) if model.gated else plain(tape, x, model, local)
        y = op.project(tape, "down", y, model.hidden_size, bias=model.bias.mlp_down)
        return op.dropout(tape, "mlp dropout", y) if model.dropout else y


def plain(tape: Tape, x: Tensor, model: Model, local: Local) -> Tensor:
    """activation(up(x)): (b, s, f)."""
    y = op.project(tape, "up", x, local.ffn_hidden_size, bias=model.bias.mlp_up)
    return activate(tape, y, model.activation)


def gated(tape: Tape, x: Tensor, model: Model, local: Local) -> Tensor:
    """activation(gate(x)) * up(x): (b, s, f)."""
    f, bias = local.ffn_hidden_size, model.bias.mlp_up
    if model.gate_up_projection == "fused":
        both = op.project(tape, "gate up", x, 2 * f, bias=bias)
        gate, up = views.split(tape, "gate, up", both, (f, f))
        tape.hold(gate, up)
        gate = activate(tape, gate, model.activation)
    else:
        gate = activate(tape, op.project(tape, "gate", x, f, bias=bias), model.activation)
        up = op.project(tape, "up", x, f, bias=bias)
    return op.multiply(tape, "gate * up", gate, up)


def activate(tape: Tape, x: Tensor, activation: str) -> Tensor:
    """GELU and SiLU keep their input, ReLU its output; squaring keeps what it squares."""
    with tape.part("activate", x):
        if activation == "relu":
            return op.elementwise(tape, "relu", x, saves="output")
        if activation == "squared_relu":
            y = op.elementwise(tape, "relu", x, saves="output")
            return op.square(tape, "relu^2", y)
        name = {"swiglu": "silu", "geglu": "gelu_tanh"}.get(activation, activation)
        return op.elementwise(tape, name, x, saves="input")
