"""Operators that move no data where strides allow it, and copy where they do not.

Each gradient rule is the view of the opposite direction, so copies in backward follow from the
layout of the gradient that arrives.
"""
from __future__ import annotations

from .layout import (
    CopyNeeded,
    Shape,
    Strides,
    dense_strides,
    expanded,
    normal,
    transposed,
    viewed,
)
from .program import INCOMING, Gradient, Incoming, Op, Tape
from .sizes import Size, uniformly
from .tensor import Tensor


def reshape(tape: Tape, name: str, x: Tensor, shape: Shape) -> Tensor:
    """x.reshape(shape): a view, or a contiguous copy. The gradient is reshaped back."""
    def back(strides: Strides) -> Strides:
        return viewed(shape, strides, x.shape)

    try:
        strides = viewed(x.shape, x.strides, shape)
    except CopyNeeded:
        y = Tensor(name, shape, x.dtype)
        return tape.append(Op(name, (x,), (y,), gradients={x: Incoming(back)}, equation="S7"))
    y = x.view(name, shape, strides)
    return tape.append(Op(name, (x,), (y,), gradients={x: Incoming(back)}, equation="S7"))


def contiguous(tape: Tape, name: str, x: Tensor) -> Tensor:
    """x.contiguous(): x itself, or a copy; the gradient is handed on."""
    if x.strides is None:
        return x
    y = Tensor(name, x.shape, x.dtype)
    return tape.append(Op(name, (x,), (y,), gradients={x: INCOMING}, equation="S7"))


def transpose(tape: Tape, name: str, x: Tensor, i: int, j: int) -> Tensor:
    """x.transpose(i, j); never a copy."""
    shape, strides = transposed(x.shape, x.strides, i, j)

    def back(gradient: Strides) -> Strides:
        return transposed(shape, gradient, i, j)[1]

    y = x.view(name, shape, strides)
    return tape.append(Op(name, (x,), (y,), gradients={x: Incoming(back)}, equation="S7"))


def split(
    tape: Tape, name: str, x: Tensor, widths: tuple[Size, ...], dim: int = -1
) -> tuple[Tensor, ...]:
    """Views along one dim; backward concatenates their gradients into a new tensor."""
    strides = dense_strides(x.shape) if x.strides is None else x.strides
    dim = dim % len(x.shape)
    pieces = []
    for i, width in enumerate(widths):
        shape = (*x.shape[:dim], width, *x.shape[dim + 1:])
        pieces.append(x.view(f"{name} {i}", shape, normal(shape, strides)))
    dx = x.gradient()
    tape.append(Op(name, (x,), tuple(pieces), backward=(+dx,), gradients={x: dx}, equation="S7"))
    return tuple(pieces)


def slice_last(tape: Tape, name: str, x: Tensor, start: Size, width: Size) -> Tensor:
    """x[..., start:start + width], a view; backward fills a tensor of x's size with zeros first."""
    shape = (*x.shape[:-1], width)
    strides = dense_strides(x.shape) if x.strides is None else x.strides
    y, dx = x.view(name, shape, normal(shape, strides)), x.gradient()
    return tape.append(Op(f"{name} from {start}", (x,), (y,), backward=(+dx,), gradients={x: dx},
                          equation="S7"))


def pad_last(tape: Tape, name: str, x: Tensor, width: Size) -> Tensor:
    """torch.nn.functional.pad of the last dim with zeros, a contiguous tensor; the gradient is a
    dense copy of its first columns."""
    y, dx = Tensor(name, (*x.shape[:-1], width), x.dtype), x.gradient()
    return tape.append(Op(name, (x,), (y,), backward=(+dx,), gradients={x: dx}, follows=(dx,),
                          equation="S7"))


def concatenate(tape: Tape, name: str, tensors: tuple[Tensor, ...], shape: Shape) -> Tensor:
    """torch.cat along the last dim: contiguous, in the widest dtype. Gradients are narrow views of
    the incoming one; the engine casts those of narrower inputs."""
    def narrow(piece: Shape) -> Incoming:
        def back(strides: Strides) -> Strides:
            return normal(piece, dense_strides(shape) if strides is None else strides)
        return Incoming(back)

    wide = next((t.dtype for t in tensors if t.dtype == "float32"), tensors[0].dtype)
    y = Tensor(name, shape, wide)
    narrowed = {t: t.gradient() for t in tensors if t.dtype != wide}
    gradients: dict[Tensor, Gradient] = {t: narrowed.get(t) or narrow(t.shape) for t in tensors}
    return tape.append(Op(name, tensors, (y,), reduce=tuple(+dt for dt in narrowed.values()),
                          gradients=gradients, equation="S7"))


def repeat_heads(tape: Tape, name: str, x: Tensor, num_heads: Size) -> Tensor:
    """(b, kv, s, d) -> (b, a, s, d): x[:, :, None].expand(...).reshape(...), a copy unless kv is 1
    or a.

    The gradient is summed over the a / kv heads that share one.
    """
    b, kv, s, d = x.shape
    groups = num_heads // kv
    steps = dense_strides(x.shape) if x.strides is None else x.strides
    inserted = (b, kv, 1, s, d)
    with tape.part(f"repeat {name}", x):
        y = x.view(
            f"{name} groups", inserted, normal(inserted, (steps[0], steps[1], 0, *steps[2:]))
        )

        def drop(strides: Strides) -> Strides:
            return None if strides is None else normal(x.shape, (*strides[:2], *strides[3:]))

        tape.append(Op(f"{name} groups", (x,), (y,), gradients={x: Incoming(drop)}, equation="S7"))
        shape, strides = expanded(inserted, y.strides, 2, groups)
        z = y.view(f"{name} expanded", shape, strides)
        dy = y.gradient()
        one = uniformly(groups == 1)
        tape.append(
            Op(
                f"{name} expanded",
                (y,),
                (z,),
                reduce=(),
                equation="S7",
                backward=() if one else (+dy,),
                gradients={y: Incoming(lambda s: s) if one else dy},
            )
        )
        return reshape(tape, f"{name} repeated", z, (b, num_heads, s, d))
