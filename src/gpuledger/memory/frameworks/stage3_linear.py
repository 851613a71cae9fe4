"""DeepSpeed's own linear function, which stage 3 puts in place of PyTorch's. [D12]

It saves its input and the parameter itself, so that no gathered weight is kept for backward, and forms
the input's gradient first. Ref: deepspeed/runtime/zero/linear.py (LinearFunctionForZeroStage3),
DeepSpeed 0.19.8.
"""
from __future__ import annotations

from gpuledger.program.device import Device
from gpuledger.program.layout import CopyNeeded, Strides, viewed
from gpuledger.program.model import Program
from gpuledger.program.program import Gradient, Moves, Op, Part
from gpuledger.program.reductions import sum_rows
from gpuledger.program.sizes import product
from gpuledger.program.tensor import Tensor


def with_own_linears(program: Program) -> Program:
    """The program with every product with a parameter replaced, in place."""
    for part in program.root.parts():
        part.body[:] = [replaced(item, program.tape.device) for item in part.body]
    return program


def replaced(item: Op | Part, device: Device) -> Op | Part:
    """A linear of PyTorch as DeepSpeed's; everything else as it is."""
    if isinstance(item, Part) or not (item.product and len(item.reads) > 1 and item.reads[1].parameter):
        return item
    return own_linear(item, device)


def own_linear(op: Op, device: Device) -> Op:
    """y = x W^T + c: x (..., k), W (n, k); the gradients of x, W and c are formed in this order.

    An incoming gradient that cannot be viewed as (rows, n) is copied for each of the two products.
    """
    (x, weight, *offset), y = op.reads, op.writes[0]
    dx, dw = x.gradient(), weight.gradient()
    folded = (product(y.shape[:-1]), y.shape[-1])
    copies = [Tensor(f"d({y.name}) copy", y.shape, y.dtype) for _ in range(2)]
    gradients: dict[Tensor, Gradient] = {weight: dw, **{bias: bias.gradient() for bias in offset}, x: dx}

    def backward(strides: Strides) -> Moves:
        try:
            viewed(y.shape, strides, folded)
        except CopyNeeded:
            first, second = copies
            moves: Moves = (+first, +dx, -first, +second, +dw, -second)
        else:
            moves = (+dx, +dw)
        for bias in offset:
            partial, semaphores = sum_rows(y.shape, strides, device)
            sums = gradients[bias]
            assert isinstance(sums, Tensor)
            moves += (+sums, +partial, +semaphores, -semaphores, -partial)
        return moves

    return Op(op.name, op.reads, op.writes, saves=(x, weight, *offset), backward=backward,
              gradients=gradients, saves_when_done=True, product=True, flops=op.flops,
              backward_flops=op.backward_flops, equation="D12")
