"""What one data-parallel rank keeps of a model, and how its micro-batches run.

A policy answers for a list of weights which tensors this rank stores, updates and keeps beside
them, and makes the timeline in which its own buffers come and go: the interface of frameworks.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.local import Local
from gpuledger.program.model import Program, Stage, build
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from .gradients import clip
from .group_timeline import GroupTimeline
from .update_rules import Moves

if TYPE_CHECKING:
    from .step import StepRunner

PINNED, PAGEABLE = "pinned", "pageable"              # kinds of host memory, a Kept's detail
Counted = Sequence[tuple[Tensor, int]]               # a tensor, and how many like it there are


@dataclass(frozen=True)
class Share:
    """What one rank keeps of something that all ranks keep together.

    local: this rank's tensor; count: how many like it there are; whole_elements: of one of them,
    undivided; padding_elements: by which the parts of all ranks exceed it; over: how it is divided.
    """

    local: Tensor
    count: int
    whole_elements: Size
    padding_elements: Size = 0
    over: str = ""


@dataclass(frozen=True)
class Kept:
    """Tensors that a framework keeps all the time; equation is a row of docs/formulas.md."""

    category: str
    name: str
    tensors: tuple[Tensor, ...]
    equation: str
    detail: str


class Policy:
    """One rank that keeps everything whole, with no buffers of its own."""

    equation: ClassVar[str] = "Z1"                   # of the parameters that this rank stores

    @property
    def divides_matrices(self) -> bool:
        """The optimizer sees parts of matrices."""
        return False

    @property
    def axes_of_found_inf(self) -> int:
        """Axes of a mesh over which the loss scaler's found_inf is reduced."""
        return 0

    @property
    def scales_in_step(self) -> bool:
        """A fused optimizer takes the loss scaler's factor with it."""
        return True

    @property
    def walks_layers_once(self) -> bool:
        """Like layers behave alike, so that one stands for many (see memory/layers.py)."""
        return True

    @property
    def neighbours(self) -> int:
        """How many layers away a layer's buffers may live, beyond the next one."""
        return 0

    def computed(self, training: Training) -> Training:
        """The training as the model sees it, where the framework and not autocast casts."""
        return training

    def build(
        self, run: Run, device: Device, part: Stage, num_layers: int | None = None
    ) -> Program:
        """The program of a part of the model; num_layers overrides the part's."""
        training = self.computed(run.training)
        local = Local.of_rank(run.model, training, run.parallel)
        return build(run.model, training, device, num_layers=num_layers, local=local, stage=part)

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> GroupTimeline:
        return GroupTimeline(program, workspaces)

    def runner(self, program: Program, training: Training, num_microbatches: int,
               workspaces: tuple[Tensor, ...] = ()) -> StepRunner:
        """Runs whole steps of this rank."""
        from .step import StepRunner

        return StepRunner(program, training, num_microbatches, workspaces, self)

    def parameters(self, weights: Counted) -> list[Share]:
        """What this rank stores of the weights."""
        return whole(weights)

    def updated(self, weights: Counted) -> list[Share]:
        """What this rank's optimizer updates on the GPU, in order."""
        return whole(weights)

    def fingerprint(self, weights: Sequence[Tensor]) -> object:
        """Equal for ranks that keep the same."""
        shares = self.updated([(weight, 1) for weight in weights])
        return [(share.local.name, share.local.shape) for share in shares]

    def gradient(self, weight: Tensor) -> Tensor:
        """What `.grad` of a weight holds after backward."""
        return weight

    def kept(self, weights: Sequence[Tensor], training: Training) -> list[Kept]:
        """The framework's own tensors that live all the time, beside parameters and states."""
        return []

    def host(self, weights: Counted, training: Training) -> list[Kept]:
        """What this rank keeps in the host's memory."""
        return []

    def clip(self, gradients: Sequence[Tensor]) -> Moves:
        """clip_grad_norm_ on this rank's gradients."""
        return clip(gradients)


def listed(weights: Counted) -> list[Tensor]:
    """Each tensor as often as it is there."""
    return [weight for weight, count in weights for _ in range(count)]


def whole(weights: Counted) -> list[Share]:
    """Each tensor undivided."""
    return [Share(weight, count, weight.numel) for weight, count in weights]
