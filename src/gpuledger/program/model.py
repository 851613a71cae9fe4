"""The whole forward pass as a program: embedding, decoder blocks, head."""
from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.model import Model
from gpuledger.config.training import Training

from .block import block
from .device import Device
from .embedding import embedding
from .head import head
from .local import Local
from .losses import scaled_loss
from .precision import PRECISIONS
from .program import Op, Part, Tape
from .tensor import Tensor


@dataclass(frozen=True)
class Program:
    """root: the step's forward. loss: its result. logits: kept by the caller, or None.

    weights are in the order of module.parameters(). loss_scaling: multiplies the loss by the scaler's
    factor, outside the forward pass.
    """

    root: Part
    loss: Tensor
    logits: Tensor | None
    weights: tuple[Tensor, ...]
    tape: Tape
    loss_scaling: Op | None = None

    @property
    def backward_from(self) -> Tensor:
        """The loss, or the scaled loss."""
        return self.loss_scaling.writes[0] if self.loss_scaling else self.loss


def build(model: Model, training: Training, device: Device, *, num_layers: int | None = None) -> Program:
    """The program of one micro-batch; num_layers overrides the model's (see memory/layers.py)."""
    tape = Tape(PRECISIONS[training.precision], device)
    local = Local.of(model, training)
    x, token_weight = embedding(tape, model, training, local)
    for layer in range(model.num_layers if num_layers is None else num_layers):
        x = block(tape, layer, x, model, training, local)
    loss, logits = head(tape, x, model, training, local,
                        token_weight if model.tie_embeddings else None)
    scaling = scaled_loss(loss) if tape.precision.loss_scaling else None
    return Program(tape.root, loss, logits, tuple(tape.weights), tape, scaling)
