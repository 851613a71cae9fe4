"""Identical layers are walked once: a deep model from a shallow walk.

The walk has a few layers at each end and one period of layers in the middle, which stands for
itself and for `copies` more. Every copy behaves as the middle does, so at an event outside the
middle the bytes live in the deep model are those of the walk plus `copies` times those that the
middle layers hold; what only one layer has at a time (Memory.once) counts once. Events of the
copies themselves need no look: away from the ends, the level at a given event of layer i is affine
in i, so a maximum over layers is reached at the first or the last of them, which are walked.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from gpuledger.config.model import Model
from gpuledger.config.training import EveryK, Training

from .policy import Policy
from .zero import UNDIVIDED


@dataclass(frozen=True)
class Walk:
    """num_layers are walked; middle[0] <= i < middle[1] stand for `copies` more of themselves."""

    num_layers: int
    middle: tuple[int, int]
    copies: int

    def stands_for(self, layer: int | None) -> int:
        """Layers of the model that this walked layer is the account of, itself included."""
        inside = layer is not None and self.middle[0] <= layer < self.middle[1]
        return 1 + self.copies if inside else 1

    def model_layer(self, layer: int) -> int:
        """Number in the model of a walked layer."""
        low, high = self.middle
        return layer if layer < high else layer + self.copies * (high - low)


def plan_walk(model: Model, training: Training, policy: Policy = UNDIVIDED,
              num_layers: int | None = None) -> Walk:
    """The shallowest walk from which the whole model (or a part of num_layers) follows."""
    num_layers = model.num_layers if num_layers is None else num_layers
    period = layer_period(model, training)
    # The first and last layer may differ from their neighbours; a framework may look further.
    ends = period + 1 + policy.neighbours
    rest = num_layers - 2 * ends - period
    if rest <= 0 or not policy.walks_layers_once:
        return Walk(num_layers, (num_layers, num_layers), 0)
    copies, remainder = divmod(rest, period)
    return Walk(2 * ends + period + remainder, (ends, ends + period), copies)


def layer_period(model: Model, training: Training) -> int:
    """After how many layers the pattern of windows and of recompute repeats."""
    windowed = model.sliding_window is not None and training.seq_len > model.sliding_window
    period = model.full_attention_interval or 1 if windowed else 1
    recompute = training.recompute
    return lcm(period, recompute.every if isinstance(recompute, EveryK) else 1)
