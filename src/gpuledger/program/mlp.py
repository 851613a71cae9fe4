"""Feed-forward: up, nonlinearity, down; or gated (SwiGLU, GeGLU)."""
from __future__ import annotations

from gpuledger.config.model import Model

from . import fused_kernels, views
from . import operators as op
from .local import Local
from .program import Tape
from .sizes import Size
from .tensor import Tensor
from .tensor_parallel import column_input, column_linear, row_linear


def mlp(tape: Tape, x: Tensor, model: Model, local: Local) -> Tensor:
    """(b, s, h) -> (b, s, h) through ffn_hidden_size."""
    with tape.part("mlp", x):
        if tape.kernels.activation in ("bias_gelu_linear", "swiglu_linear"):
            function = gated_fused if model.gated else plain_fused
            y = function(tape, x, model, local)
        else:
            y = gated(tape, x, model, local) if model.gated else plain(tape, x, model, local)
            y = row_linear(tape, local, down_weights(tape, model, local), y)
        return fused_kernels.dropout(tape, "mlp dropout", y) if model.dropout else y


def down_weights(tape: Tape, model: Model, local: Local) -> op.LinearWeights:
    """(b, s, f) -> (b, s, h)."""
    return op.LinearWeights.of(tape, "down", local.ffn_hidden_size, model.hidden_size,
                               bias=model.bias.mlp_down)


def plain_fused(tape: Tape, x: Tensor, model: Model, local: Local) -> Tensor:
    """bias + GELU + down in one node, after the up-projection without its bias."""
    f = local.ffn_hidden_size
    up = op.LinearWeights.of(tape, "up", model.hidden_size, f, bias=model.bias.mlp_up)
    y = op.linear(tape, op.LinearWeights("up", up.weight, None), x)
    return fused_kernels.bias_gelu_linear(tape, y, up.offset, down_weights(tape, model, local))


def gated_fused(tape: Tape, x: Tensor, model: Model, local: Local) -> Tensor:
    """SwiGLU + down in one node, after the gate's and the up-projection."""
    gate, up = gate_and_up(tape, x, model, local)
    return fused_kernels.swiglu_linear(tape, gate, up, down_weights(tape, model, local))


def gate_and_up(tape: Tape, x: Tensor, model: Model, local: Local) -> tuple[Tensor, Tensor]:
    """Two projections, or the halves of one: (b, s, f) each."""
    f, bias = local.ffn_hidden_size, model.bias.mlp_up
    if model.gate_up_projection == "fused":
        gate, up = views.split(
            tape, "gate, up", project(tape, "gate up", x, 2 * f, bias, local), (f, f)
        )
        tape.hold(gate, up)
        return gate, up
    return project(tape, "gate", x, f, bias, local), project(tape, "up", x, f, bias, local)


def project(tape: Tape, name: str, x: Tensor, n: Size, bias: bool, local: Local) -> Tensor:
    """This rank's n columns of a projection, with new weights."""
    return column_linear(tape, local, op.LinearWeights.of(tape, name, x.shape[-1], n, bias=bias), x)


def plain(tape: Tape, x: Tensor, model: Model, local: Local) -> Tensor:
    """activation(up(x)): (b, s, f)."""
    y = project(
        tape, "up", column_input(tape, local, x), local.ffn_hidden_size, model.bias.mlp_up, local
    )
    return activate(tape, y, model.activation)


def gated(tape: Tape, x: Tensor, model: Model, local: Local) -> Tensor:
    """activation(gate(x)) * up(x): (b, s, f)."""
    f, bias = local.ffn_hidden_size, model.bias.mlp_up
    x = column_input(tape, local, x)
    if tape.kernels.activation == "swiglu":
        return fused_kernels.swiglu(tape, *gate_and_up(tape, x, model, local))
    if model.gate_up_projection == "fused":
        both = project(tape, "gate up", x, 2 * f, bias, local)
        gate, up = views.split(tape, "gate, up", both, (f, f))
        tape.hold(gate, up)
        gate = activate(tape, gate, model.activation)
    else:
        gate = activate(tape, project(tape, "gate", x, f, bias, local), model.activation)
        up = project(tape, "up", x, f, bias, local)
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
