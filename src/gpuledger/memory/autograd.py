"""PyTorch's autograd engine: one node after the other, and the gradient buffers between them.

No operator is known by name here: a node is what its `Op` says.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpuledger.program.layout import CopyNeeded, Shape, Strides, dense, elementwise, viewed
from gpuledger.program.model import Program
from gpuledger.program.program import Gradient, Incoming, Moves, Op
from gpuledger.program.tensor import Tensor

from .ledger import Memory
from .schedule import Step


class Buffer:
    """A gradient on its way to a node: its allocation, its strides, and whether it is a view.

    PyTorch never adds in place to a view: its base holds the storage too.
    """

    __slots__ = ("is_view", "number", "strides")

    def __init__(self, number: int, is_view: bool, strides: Strides = None):
        self.number = number
        self.is_view = is_view
        self.strides = strides


@dataclass(frozen=True)
class Deferred:
    """Weights of a product whose gradients are left for later, and the allocations they need."""

    step: Step
    weights: tuple[Tensor, ...]
    held: list[int]


class Autograd:
    """The nodes of one micro-batch.

    saved: what each node holds. pending: gradient buffers of tensors whose node has not run yet.
    missing: gradients that a parameter still waits for. split: weight gradients wait for a pass of
    their own (`deferred`). grads: `.grad` of each parameter.
    """

    program: Program
    memory: Memory
    saved: dict[Op, list[int]]
    pending: dict[Tensor, Buffer]
    missing: Counter[Tensor]
    deferred: list[Deferred]
    outgoing: dict[Tensor, Buffer]
    grads: dict[Tensor, int]
    workspaces: dict[bool, Tensor]
    in_backward: bool
    split: bool

    def differentiate(self, step: Step) -> None:
        """One autograd node: its function, the engine's reductions, then what the node held is let
        go."""
        op, memory = step.op, self.memory
        incoming = [self.pending.pop(t) for t in op.writes if t in self.pending]
        if op.folded_output is not None and incoming[0].strides is not None:
            incoming = [self.folded(incoming[0], op, op.folded_output)]
        saved = self.saved.pop(op, [])
        moves = op.backward(incoming[0].strides) if callable(op.backward) else op.backward
        postponed = self.postpone(step, moves, [*saved, *(b.number for b in incoming)])
        if postponed:
            moves = tuple(move for move in moves if move.tensor.role != "gradient")
        if op.product and not op.only_forward_product and self.workspaces:
            memory.play(moves[:op.moves_before_product])
            self.take_workspace()
            memory.play(moves[op.moves_before_product:])
        else:
            memory.play(moves)
        if op.shares:
            memory.hold_all(op.shares)
        copies = self.copies_of_incoming(op, incoming)
        # what a checkpoint unpacks is local to the node
        if step.region:
            memory.drop(*reversed(saved))
        if op.reduce:
            memory.play(op.reduce(incoming[0].strides) if callable(op.reduce) else op.reduce)
        self.outgoing = {t: copies.get(t) or self.outgoing_buffer(op, gradient, incoming)
                         for t, gradient in op.gradients.items() if t not in postponed}
        memory.drop(*(buffer.number for buffer in incoming))
        if not step.region:
            memory.drop(*saved)

    def postpone(self, step: Step, moves: Moves, held: list[int]) -> tuple[Tensor, ...]:
        """The weights of a product whose gradients wait; `held`, its input and gradient, wait with
        them."""
        if not (self.split and step.op.product):
            return ()
        formed = {move.tensor for move in moves if move.tensor.role == "gradient"}
        weights = tuple(t for t, gradient in step.op.gradients.items()
                        if isinstance(gradient, Tensor) and gradient.storage in formed)
        if weights:
            for number in held:
                self.memory.hold(number)
            self.deferred.append(Deferred(step, weights, held))
        return weights

    def folded(self, buffer: Buffer, op: Op, shape: Shape) -> Buffer:
        """The gradient in the shape in which the node's function wrote its output: a view, or a
        copy."""
        try:
            strides = viewed(op.writes[0].shape, buffer.strides, shape)
        except CopyNeeded:
            copy = self.memory.allocate(op.writes[0].gradient())
            self.memory.drop(buffer.number)
            return Buffer(copy, is_view=False)
        return Buffer(buffer.number, True, strides)

    def copies_of_incoming(self, op: Op, incoming: list[Buffer]) -> dict[Tensor, Buffer]:
        """Where no view of the incoming gradient has the wanted shape, `reshape` copies it."""
        copies = {}
        for tensor, gradient in op.gradients.items():
            if isinstance(gradient, Incoming) and gradient.view is not None:
                try:
                    gradient.view(incoming[0].strides)
                except CopyNeeded:
                    copies[tensor] = Buffer(self.memory.allocate(tensor.gradient()), is_view=False)
        return copies

    def outgoing_buffer(self, op: Op, gradient: Gradient, incoming: list[Buffer]) -> Buffer:
        memory = self.memory
        if isinstance(gradient, Incoming):
            (buffer,) = incoming
            if gradient.view is None:
                return Buffer(memory.hold(buffer.number), buffer.is_view, buffer.strides)
            return Buffer(memory.hold(buffer.number), True, gradient.view(buffer.strides))
        number = memory.current[gradient.storage]
        if gradient in op.saves and gradient in op.writes:      # its own output, overwritten
            memory.hold(number)
        strides = gradient.strides
        if gradient in op.follows and incoming[0].strides is not None:
            strides = op.layout(gradient.shape, incoming[0].strides)
        return Buffer(number, gradient.view_of is not None, strides)

    def hand_over(self) -> None:
        for tensor, buffer in self.outgoing.items():
            self.accumulate(tensor, buffer)
            if tensor.parameter:
                self.missing[tensor] -= 1
                if not self.missing[tensor]:
                    self.store(tensor, self.pending.pop(tensor).number)

    def accumulate(self, tensor: Tensor, new: Buffer) -> None:
        """Add to what the tensor's node has received."""
        self.add_to(self.pending, tensor, new)

    def add_to(self, buffers: dict[Tensor, Buffer], tensor: Tensor, new: Buffer) -> None:
        """Add in place where the buffer is nobody else's, dense, no view and no DTensor; otherwise
        into a third one."""
        memory = self.memory
        old = buffers.setdefault(tensor, new)
        if old is new:
            return
        alone = memory.holders[old.number] == 1 and not old.is_view and not tensor.dtensor
        cut = [memory.allocate(tensor.gradient())] if tensor in self.program.tape.whole_gradients else []
        if not (alone and dense(tensor.shape, old.strides)):
            total = memory.allocate(tensor.gradient())
            strides = elementwise(tensor.shape, old.strides, new.strides)
            buffers[tensor] = Buffer(total, is_view=False, strides=strides)
            memory.drop(old.number)
        memory.drop(new.number, *cut)

    def store(self, parameter: Tensor, number: int) -> None:
        """A parameter takes over its first gradient; later micro-batches are added in place."""
        if self.grads.setdefault(parameter, number) != number:
            self.memory.drop(number)
        else:
            self.memory.categories[number] = "gradients"

    def take_workspace(self) -> None:
        """The first product of a thread makes cuBLAS's workspace; recomputed ones are backward's.
        """
        workspace = self.workspaces.pop(self.in_backward, None)
        if workspace is not None:
            self.memory.allocate(workspace)
