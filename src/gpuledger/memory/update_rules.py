"""What the updates of SGD, Adam and Lion allocate and free, in order: states once, temporaries in
each step.

A rule yields moves. Where Python code keeps a tensor in a variable until the variable is bound
again, the rule does so too: that is why some temporaries live until the next parameter's.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.tensor import Move, Tensor

from .optimizer_states import optimizer_states

Moves = Iterator[Move]


@dataclass(frozen=True)
class Update:
    """weights: what is updated, in order. first: states do not exist yet.

    brief: an optimizer that has nothing of one parameter left when it begins the next may leave out
    what repeats; the highest level is the same, the stream is not.
    """

    weights: Sequence[Tensor]
    training: Training
    device: Device
    first: bool
    brief: bool = False

    def of(self, weights: Sequence[Tensor]) -> Update:
        """The same update of other weights."""
        return replace(self, weights=weights)

    def states(self, *weights: Tensor) -> Moves:
        """The states of these weights, in the first step."""
        if self.first:
            for weight in weights:
                for state in optimizer_states(weight, self.training):
                    yield +state


class Variables:
    """Python's variables: binding one lets go of what it held. Two names may hold one tensor."""

    def __init__(self) -> None:
        self.bound: dict[str, Tensor] = {}

    def bind(self, name: str, tensor: Tensor) -> Moves:
        """`tensor` has been allocated; what nobody holds any more is freed."""
        old = self.bound.get(name)
        self.bound[name] = tensor
        if old is not None and old not in self.bound.values():
            yield -old

    def end(self) -> Moves:
        """The function returns."""
        for tensor in dict.fromkeys(self.bound.values()):
            yield -tensor


def in_place(update: Update) -> Moves:
    """SGD, and fused kernels: no temporaries. [O7]"""
    yield from update.states(*update.weights)


def adam_foreach(update: Update) -> Moves:
    """sqrt(v) of all parameters lives at once. [O7] Ref: torch/optim/adam.py _multi_tensor_adam."""
    yield from update.states(*update.weights)
    roots = [weight.like("sqrt(v)") for weight in update.weights]
    yield from (+root for root in roots)
    yield from (-root for root in roots)


def adam_for_loop(update: Update) -> Moves:
    """sqrt(v), then the denominator, which its variable keeps until the next parameter's is there.
    [O8]

    Ref: torch/optim/adam.py _single_tensor_adam.
    """
    yield from update.states(*update.weights)
    variables = Variables()
    for weight in update.weights:
        root, denominator = weight.like("sqrt(v)"), weight.like("denominator")
        yield from (+root, +denominator, -root)
        yield from variables.bind("denominator", denominator)
    yield from variables.end()


def lion(update: Update) -> Moves:
    """The momentum's copy, and the direction beside it; states come with each parameter's update.
    [O9]"""
    for weight in update.weights:
        yield from update.states(weight)
        copy, direction = weight.like("momentum copy"), weight.like("direction")
        yield from (+copy, +direction, -copy, -direction)
