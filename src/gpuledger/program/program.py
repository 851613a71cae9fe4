"""A step as data: operators, and the parts (Python calls) that contain them."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpuledger.config.fused_kernels import PYTORCHS_KERNELS, FusedKernels

from .device import Device
from .layout import Shape, Strides, elementwise
from .precision import Precision
from .sizes import Size
from .tensor import Move, Tensor


class Incoming:
    """A gradient handed on without a kernel: the incoming one, or a view of it.

    view   strides of the incoming gradient -> strides of the outgoing one; None hands the same
           tensor on.
           Where it raises CopyNeeded the node makes a contiguous copy instead, as `reshape` does.
    """

    __slots__ = ("view",)

    def __init__(self, view: Callable[[Strides], Strides] | None = None):
        self.view = view


INCOMING = Incoming()
Moves = tuple[Move, ...]
Script = Moves | Callable[[Strides], Moves]
Gradient = Tensor | Incoming


class Op:
    """One autograd node with all that is known about it.

    reads, writes   tensors; the writes that are no views are allocated, in order, unless `forward`
                    says
    saves           what the node holds until its backward ran, in the order PyTorch lets go of it
    forward         what the kernel allocates and frees, in order
    backward        what the node's function allocates and frees; a function of the incoming
                    gradient's strides where the node copies a gradient that lies otherwise than its
                    kernel reads
    reduce          what the engine does after that function returned: sum a broadcast gradient,
                    cast it; a function of the incoming gradient's strides where a sum's scratch
                    depends on them
    gradients       what each differentiable read receives: a tensor of those moves, or Incoming; in
                    the order in which the engine hands them on
    follows         the strides of these gradients are `layout` of the incoming gradient's
    layout          elementwise: they lie in memory as that one does
    folded_output   the shape in which the function writes its output, where that is not the
                    output's own: the gradient is reshaped to it first, by a copy where strides
                    allow no view
    product         a matrix product: the first one of each thread takes a cuBLAS workspace for good
    only_forward_product  its backward runs no product
    shares          gradients that are not the node's alone: two reads receive one, or it lies in a
                    saved storage; held once more each
    moves_before_product   of backward, where that is not one
    saves_when_done a custom function saves after it ran, its inputs too: a checkpoint runs it
    only_recomputed a cached cast: no node, and no work unless a checkpoint runs it again
    flops, backward_flops   exact for the shapes, multiply and add counted apart
    dispatched      the operator that a TorchDispatchMode sees, where a checkpoint per operator
                    may keep its output: "mm", "addmm", "bmm", "attention" or "reduce_scatter"
    equation        row of docs/formulas.md
    """

    __slots__ = (
        "_forward_moves",
        "backward",
        "backward_flops",
        "dispatched",
        "equation",
        "flops",
        "folded_output",
        "follows",
        "gradients",
        "layout",
        "moves_before_product",
        "name",
        "only_forward_product",
        "only_recomputed",
        "product",
        "reads",
        "reduce",
        "saves",
        "saves_when_done",
        "shares",
        "writes",
    )

    def __init__(self, name: str, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...], *,
                 saves: tuple[Tensor, ...] = (), forward: tuple[Move, ...] | None = None,
                 backward: Script = (), reduce: Script = (),
                 gradients: dict[Tensor, Gradient] | None = None, follows: tuple[Tensor, ...] = (),
                 folded_output: Shape | None = None,
                 layout: Callable[[Shape, Strides], Strides] = elementwise,
                 shares: tuple[Tensor, ...] = (), moves_before_product: int = 1,
                 saves_when_done: bool = False,
                 product: bool = False, only_forward_product: bool = False,
                 only_recomputed: bool = False,
                 flops: Size = 0, backward_flops: Size = 0, dispatched: str = "",
                 equation: str = ""):
        self.name = name
        self.reads = reads
        self.writes = writes
        self.saves = saves
        self._forward_moves = forward
        self.backward = backward
        self.reduce = reduce
        self.gradients: dict[Tensor, Gradient] = gradients if gradients is not None else {}
        self.follows = follows
        self.folded_output = folded_output
        self.layout = layout
        self.shares = shares
        self.saves_when_done = saves_when_done
        self.moves_before_product = moves_before_product
        self.product = product
        self.only_forward_product = only_forward_product
        self.only_recomputed = only_recomputed
        self.flops = flops
        self.backward_flops = backward_flops
        self.dispatched = dispatched
        self.equation = equation

    def __repr__(self) -> str:
        return f"Op({self.name})"

    @property
    def forward_moves(self) -> tuple[Move, ...]:
        if self._forward_moves is None:
            self._forward_moves = tuple(+t for t in self.writes if t.view_of is None)
        return self._forward_moves

    @property
    def saves_an_output(self) -> bool:
        """A checkpoint has to run it to have what it saves."""
        return self.saves_when_done or any(t in self.writes for t in self.saves)


@dataclass(eq=False)
class Part:
    """One Python call: it holds its arguments and named locals until it returns.

    checkpoint: it is run again in backward; per_op: but some operators keep their output;
    offloads: its arguments wait on the host.
    """

    name: str
    arguments: tuple[Tensor, ...] = ()
    locals: list[Tensor] = field(default_factory=list)
    body: list[Op | Part] = field(default_factory=list)
    checkpoint: bool = False
    layer: int | None = None
    per_op: bool = False
    offloads: bool = False

    def kept_ops(self) -> set[Op]:
        """Operators whose outputs a checkpoint per operator keeps: every product but each second
        mm, attention, and what was scattered. [S18]

        Ref: torchtitan/distributed/activation_checkpoint.py (SelectiveAC).
        """
        if not self.per_op:
            return set()
        compute = [op for op in self.ops() if op.dispatched]
        recomputed = [op for op in compute if op.dispatched == "mm"][1::2]
        return set(compute) - set(recomputed)

    def ops(self) -> Iterator[Op]:
        """All operators inside, in program order."""
        for item in self.body:
            if isinstance(item, Part):
                yield from item.ops()
            else:
                yield item

    def parts(self) -> Iterator[Part]:
        """This part and all inside it, outermost first."""
        yield self
        for item in self.body:
            if isinstance(item, Part):
                yield from item.parts()

    def find(self, name: str) -> Part:
        """The first part of this name. Raises KeyError."""
        for part in self.parts():
            if part.name == name:
                return part
        raise KeyError(name)


class Tape:
    """Builds a program. The model's parts call operators on it, as PyTorch modules call PyTorch."""

    def __init__(self, precision: Precision, device: Device,
                 kernels: FusedKernels = PYTORCHS_KERNELS):
        self.precision = precision
        self.device = device
        self.kernels = kernels
        self.root = Part("step")
        self.stack = [self.root]
        self.weights: list[Tensor] = []
        self.weight_layers: list[int | None] = []        # the decoder layer of each weight
        self.weight_copies: dict[Tensor, Tensor] = {}    # autocast's cache
        self.tables: tuple[Tensor, ...] = ()             # the model's constant tensors
        self.scripts: dict[object, Any] = {}             # moves of calls that other layers repeat
        self.dtensors = self.divided_tokens = False      # DTensor divides layers; also the residual stream
        self.partial_gradients: set[Tensor] = set()      # weights: to be summed over those ranks
        self.whole_gradients: dict[Tensor, Tensor] = {}  # of weights: to be cut to this rank's part

    def weight(self, name: str, *shape: Size) -> Tensor:
        """A parameter, in the order of module.parameters()."""
        weight = Tensor(name, shape, self.precision.weight_dtype, "parameter")
        self.weights.append(weight)
        self.weight_layers.append(self.layer)
        return weight

    @property
    def layer(self) -> int | None:
        """The decoder layer that is being written, if any."""
        return next((part.layer for part in self.stack if part.layer is not None), None)

    def append(self, op: Op) -> Tensor:
        """Add an operator to the current part; returns its first output."""
        self.stack[-1].body.append(op)
        return op.writes[0]

    def hold(self, *tensors: Tensor) -> None:
        """The current part has a local variable for these."""
        self.stack[-1].locals.extend(tensors)

    def hold_in_autocast_cache(self, tensor: Tensor) -> None:
        """The cache is emptied when the autocast context exits: the step's forward, or one
        recomputed part."""
        for part in self.stack:
            if part is self.root or part.checkpoint:
                part.locals.append(tensor)

    @contextmanager
    def part(self, name: str, *arguments: Tensor, checkpoint: bool = False,
             layer: int | None = None, per_op: bool = False,
             offloads: bool = False) -> Iterator[Part]:
        """A call, open while its body is written."""
        part = Part(name, arguments, checkpoint=checkpoint, layer=layer, per_op=per_op,
                    offloads=offloads)
        self.stack[-1].body.append(part)
        self.stack.append(part)
        yield part
        self.stack.pop()
