"""The optimizer's step: states in the first one, temporaries in every one, and zero_grad."""
from __future__ import annotations

from collections.abc import Sequence

from gpuledger.config.training import Training
from gpuledger.program.tensor import Tensor

from .ledger import Memory
from .optimizer_states import optimizer_states


class OptimizerStep:
    """Runs the optimizer on `memory`. weights: what it updates (masters or their shards), in order.

    Nothing is known here about who computes the gradients; `gradients` are allocation numbers by weight.
    """

    def __init__(self, memory: Memory, weights: Sequence[Tensor], training: Training):
        self.memory = memory
        self.weights = weights
        self.training = training

    def states(self) -> None:
        """The first step makes every parameter's states before it updates any. """
        for weight in self.weights:
            for state in optimizer_states(weight, self.training):
                self.memory.allocate(state, "optimizer")

    def step(self) -> None:
        """Temporaries of one update."""
        TEMPORARIES[self.rule()](self)

    def rule(self) -> str:
        training = self.training
        if training.optimizer in ("adam", "adamw"):
            return f"adam {training.optimizer_implementation}"
        return training.optimizer

    def temporary(self, tensor: Tensor) -> int:
        return self.memory.allocate(tensor, "optimizer")


def no_temporaries(step: OptimizerStep) -> None:
    """SGD in place, and fused kernels."""


def adam_foreach(step: OptimizerStep) -> None:
    """sqrt(v) of all parameters lives at once. [O7] Ref: torch/optim/adam.py _multi_tensor_adam."""
    roots = [step.temporary(weight.like("sqrt(v)")) for weight in step.weights]
    step.memory.drop(*reversed(roots))


def adam_for_loop(step: OptimizerStep) -> None:
    """sqrt(v), then the denominator, which its variable keeps until the next parameter's is there. [O8]"""
    denominator = None
    for weight in step.weights:
        root = step.temporary(weight.like("sqrt(v)"))
        new = step.temporary(weight.like("denominator"))
        step.memory.drop(root)
        if denominator is not None:
            step.memory.drop(denominator)
        denominator = new
    if denominator is not None:
        step.memory.drop(denominator)


def lion(step: OptimizerStep) -> None:
    """The momentum's copy, and the direction beside it. [O9]"""
    for weight in step.weights:
        copy = step.temporary(weight.like("momentum copy"))
        direction = step.temporary(weight.like("direction"))
        step.memory.drop(copy, direction)


TEMPORARIES = {
    "sgd": no_temporaries,
    "adam fused": no_temporaries,
    "adam foreach": adam_foreach,
    "adam for-loop": adam_for_loop,
    "lion": lion,
    "adafactor": no_temporaries,
    "muon": no_temporaries,
    "adamw-8bit": no_temporaries,
}
