"""The optimizer's step: states in the first one, temporaries in every one."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.tensor import Move, Tensor

from .adafactor import adafactor_for_loop, adafactor_foreach
from .eight_bit import adamw_8bit
from .ledger import Memory
from .muon import muon
from .optimizer_states import muon_updates
from .update_rules import Moves, Update, adam_for_loop, adam_foreach, in_place, lion


class OptimizerStep:
    """Runs the optimizer on `memory`. weights: what it updates (masters or their shards), in order.

    Nothing is known here about who computes the gradients.
    """

    def __init__(
        self, memory: Memory, weights: Sequence[Tensor], training: Training, device: Device
    ):
        self.memory = memory
        self.weights = weights
        self.training = training
        self.device = device
        self.brief = False                   # the highest level is wanted, not the stream

    def step(self, *, first: bool = False) -> None:
        """One update: in the first one states are made, and stay."""
        update = Update(self.weights, self.training, self.device, first, self.brief)
        self.memory.play(RULES[rule(self.training)](update), "optimizer")


def rule(training: Training) -> str:
    """The optimizer, and its implementation where they differ."""
    name = "adam" if training.optimizer == "adamw" else training.optimizer
    return f"{name} {training.optimizer_implementation}" if name in ("adam", "adafactor") else name


def muon_and_adamw(update: Update) -> Iterator[Move]:
    """Muon for the matrices of the blocks, then AdamW, parameter by parameter, for the rest."""
    yield from muon(update.of([w for w in update.weights if muon_updates(w)]))
    yield from adam_for_loop(update.of([w for w in update.weights if not muon_updates(w)]))


RULES: dict[str, Callable[[Update], Moves]] = {
    "sgd": in_place,
    "adam fused": in_place,
    "adam foreach": adam_foreach,
    "adam for-loop": adam_for_loop,
    "lion": lion,
    "adafactor foreach": adafactor_foreach,
    "adafactor for-loop": adafactor_for_loop,
    "muon": muon_and_adamw,
    "adamw-8bit": adamw_8bit,
}
