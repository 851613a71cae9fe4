"""bias + GELU and SwiGLU, alone or with the down-projection that follows.

Alone they save their inputs; the matmul after them saves their output as well. The *_linear
operators save the inputs and the weight only, and recompute the output in backward. [FK3] to [FK6]
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd
from torch.nn.functional import linear

from gpuledger.torch_runs.kernels.shapes import dense_like, register_shapes


def bias_gelu(ops: Any, x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    """gelu(x + bias), shaped like x: [..., cols]. bias: [cols] or None. tanh: the approximation."""
    y: Tensor = ops.bias_gelu(x, bias, tanh)
    return y


def swiglu(ops: Any, gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up. gate and up may be the halves of one matmul's output: no copy is made."""
    y: Tensor = ops.swiglu(gate, up)
    return y


def bias_gelu_linear(ops: Any, x: Tensor, bias: Tensor | None, down: Tensor,
                     down_bias: Tensor | None, tanh: bool) -> Tensor:
    """linear(gelu(x + bias), down, down_bias): [..., ffn] -> [..., hidden]. down: [hidden, ffn]."""
    y: Tensor = ops.bias_gelu_linear(x, bias, down, down_bias, tanh)
    return y


def swiglu_linear(ops: Any, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """linear(silu(gate) * up, down): [..., ffn] -> [..., hidden]. down: [hidden, ffn]."""
    y: Tensor = ops.swiglu_linear(gate, up, down)
    return y


_libraries: list[Library] = []              # an operator lives as long as its Library


def _bias_gelu_shape(x: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
    return dense_like(x)


def _bias_gelu_backward_shape(dy: Tensor, x: Tensor, bias: Tensor | None,
                              tanh: bool) -> tuple[Tensor, Tensor]:
    return dense_like(x), x.new_empty(0 if bias is None else len(bias))


def _swiglu_shape(gate: Tensor, up: Tensor) -> Tensor:
    return dense_like(gate)


def _swiglu_backward_shape(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return dense_like(gate), dense_like(up)


def _bias_gelu_linear_shape(x: Tensor, bias: Tensor | None, down: Tensor,
                            down_bias: Tensor | None, tanh: bool) -> Tensor:
    return x.new_empty(*x.shape[:-1], down.shape[0])


def _bias_gelu_linear_backward_shape(dout: Tensor, x: Tensor, bias: Tensor | None, down: Tensor,
                                     with_down_bias: bool, tanh: bool) -> tuple[Tensor, ...]:
    return (dense_like(x), x.new_empty(0 if bias is None else len(bias)), dense_like(down),
            down.new_empty(down.shape[0] * with_down_bias))


def _swiglu_linear_shape(gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return gate.new_empty(*gate.shape[:-1], down.shape[0])


def _swiglu_linear_backward_shape(dout: Tensor, gate: Tensor, up: Tensor,
                                  down: Tensor) -> tuple[Tensor, ...]:
    return dense_like(gate), dense_like(up), dense_like(down)


_SHAPES: dict[str, Callable[..., Any]] = {
    "bias_gelu": _bias_gelu_shape,
    "bias_gelu_backward": _bias_gelu_backward_shape,
    "swiglu": _swiglu_shape,
    "swiglu_backward": _swiglu_backward_shape,
    "bias_gelu_linear": _bias_gelu_linear_shape,
    "bias_gelu_linear_backward": _bias_gelu_linear_backward_shape,
    "swiglu_linear": _swiglu_linear_shape,
    "swiglu_linear_backward": _swiglu_linear_backward_shape,
}


def register(namespace: str) -> None:
    """Shape and gradient rules, and the operators that are made of a kernel and matmuls."""
    ops = getattr(torch.ops, namespace)
    library = Library(namespace, "FRAGMENT")
    _libraries.append(library)
    _define_bias_gelu_linear(library, ops)
    _define_swiglu_linear(library, ops)
    register_shapes(namespace, _SHAPES)
    _register_gradients(namespace, ops)
    _register_bias_gelu_linear_gradient(namespace, ops)
    _register_swiglu_linear_gradient(namespace, ops)


def _register_gradients(namespace: str, ops: Any) -> None:
    def keep_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, bias, ctx.tanh = inputs
        ctx.save_for_backward(x, bias)

    def from_gelu(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        dx, dbias = ops.bias_gelu_backward(dy, x, bias, ctx.tanh)
        return dx, None if bias is None else dbias, None

    def keep_swiglu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def from_swiglu(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        dgate, dup = ops.swiglu_backward(dy, *ctx.saved_tensors)
        return dgate, dup

    register_autograd(f"{namespace}::bias_gelu", from_gelu, setup_context=keep_gelu)
    register_autograd(f"{namespace}::swiglu", from_swiglu, setup_context=keep_swiglu)


def _weight_gradient(dout: Tensor, y: Tensor) -> Tensor:
    """[hidden, ffn] from [..., hidden] and [..., ffn]."""
    return dout.reshape(-1, dout.shape[-1]).t() @ y.reshape(-1, y.shape[-1])


def _define_bias_gelu_linear(library: Library, ops: Any) -> None:
    library.define("bias_gelu_linear(Tensor x, Tensor? bias, Tensor down, Tensor? down_bias, "
                   "bool tanh) -> Tensor")
    library.define("bias_gelu_linear_backward(Tensor dout, Tensor x, Tensor? bias, Tensor down, "
                   "bool with_down_bias, bool tanh) -> "
                   "(Tensor dx, Tensor dbias, Tensor ddown, Tensor ddown_bias)")

    def forward(x: Tensor, bias: Tensor | None, down: Tensor, down_bias: Tensor | None,
                tanh: bool) -> Tensor:
        return linear(ops.bias_gelu(x, bias, tanh), down, down_bias)

    def backward(dout: Tensor, x: Tensor, bias: Tensor | None, down: Tensor, with_down_bias: bool,
                 tanh: bool) -> tuple[Tensor, ...]:
        ddown = _weight_gradient(dout, ops.bias_gelu(x, bias, tanh))
        rows = dout.reshape(-1, dout.shape[-1])
        ddown_bias = rows.sum(0) if with_down_bias else down.new_empty(0)
        dx, dbias = ops.bias_gelu_backward(dout @ down, x, bias, tanh)
        return dx, dbias, ddown, ddown_bias

    library.impl("bias_gelu_linear", forward, "CompositeExplicitAutograd")
    library.impl("bias_gelu_linear_backward", backward, "CompositeExplicitAutograd")


def _register_bias_gelu_linear_gradient(namespace: str, ops: Any) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, bias, down, down_bias, ctx.tanh = inputs
        ctx.with_down_bias = down_bias is not None
        ctx.save_for_backward(x, bias, down)

    def gradients(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, bias, down = ctx.saved_tensors
        dx, dbias, ddown, ddown_bias = ops.bias_gelu_linear_backward(
            dout, x, bias, down, ctx.with_down_bias, ctx.tanh)
        return (dx, None if bias is None else dbias, ddown,
                ddown_bias if ctx.with_down_bias else None, None)

    register_autograd(f"{namespace}::bias_gelu_linear", gradients, setup_context=keep)


def _define_swiglu_linear(library: Library, ops: Any) -> None:
    library.define("swiglu_linear(Tensor gate, Tensor up, Tensor down) -> Tensor")
    library.define("swiglu_linear_backward(Tensor dout, Tensor gate, Tensor up, Tensor down) -> "
                   "(Tensor dgate, Tensor dup, Tensor ddown)")

    def forward(gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return linear(ops.swiglu(gate, up), down)

    def backward(dout: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, ...]:
        ddown = _weight_gradient(dout, ops.swiglu(gate, up))
        dgate, dup = ops.swiglu_backward(dout @ down, gate, up)
        return dgate, dup, ddown

    library.impl("swiglu_linear", forward, "CompositeExplicitAutograd")
    library.impl("swiglu_linear_backward", backward, "CompositeExplicitAutograd")


def _register_swiglu_linear_gradient(namespace: str, ops: Any) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def gradients(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        dgate, dup, ddown = ops.swiglu_linear_backward(dout, *ctx.saved_tensors)
        return dgate, dup, ddown

    register_autograd(f"{namespace}::swiglu_linear", gradients, setup_context=keep)
