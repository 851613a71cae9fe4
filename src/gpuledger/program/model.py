"""The whole forward pass as a program: embedding, decoder blocks, head."""
from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.fused_kernels import FusedKernels
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
from .tables import tables
from .tensor import Tensor


@dataclass(frozen=True)
class Stage:
    """Which part of the model a program is: num_layers blocks from number first_layer on, with the
    embedding before the first stage's and the head after the last stage's."""

    first_layer: int
    num_layers: int
    embedding: bool = True
    head: bool = True


@dataclass(frozen=True)
class Program:
    """root: the step's forward. loss: its result. logits: kept by the caller, or None.

    weights are in the order of module.parameters(). loss_scaling: multiplies the loss by the
    scaler's factor, outside the forward pass. received: the activation from the stage before, or
    None; a stage without head has its output, which the next stage receives, as its loss.
    batch: tensors that a micro-batch makes for itself, where it is not the same one all the time.
    """

    root: Part
    loss: Tensor
    logits: Tensor | None
    weights: tuple[Tensor, ...]
    tape: Tape
    loss_scaling: Op | None = None
    received: Tensor | None = None
    sends: bool = False
    batch: tuple[Tensor, ...] = ()

    @property
    def backward_from(self) -> Tensor:
        """The loss, or the scaled loss."""
        return self.loss_scaling.writes[0] if self.loss_scaling else self.loss


def build(model: Model, training: Training, device: Device, *, num_layers: int | None = None,
          local: Local | None = None, stage: Stage | None = None) -> Program:
    """The program of one micro-batch of a stage, or of the whole model on one rank.

    num_layers overrides the stage's (see memory/layers.py).
    """
    tape = Tape(PRECISIONS[training.precision], device, FusedKernels.of(model, training))
    local = local or Local.of(model, training)
    tape.dtensors = local.tp > 1 and local.style == "torch"
    tape.divided_tokens = tape.dtensors and local.sequence_parallel
    if local.cp > 1:
        training = training.model_copy(update={"seq_len": local.seq_len})
    tape.tables = tuple(tables(model, training))
    stage = stage or Stage(0, model.num_layers)
    token_weight: Tensor | None = None
    if stage.embedding:
        x, token_weight = embedding(tape, model, training, local)
    else:
        x = received_activation(tape, model, local)
    received = None if stage.embedding else x
    for layer in range(stage.num_layers if num_layers is None else num_layers):
        x = block(tape, layer, x, model, training, local, stage.first_layer)
    if not stage.head:
        return Program(tape.root, x, None, tuple(tape.weights), tape, None, received, sends=True)
    loss, logits = head(tape, x, model, training, local,
                        head_weight(tape, model, local, token_weight))
    scaling = scaled_loss(loss) if tape.precision.loss_scaling else None
    return Program(tape.root, loss, logits, tuple(tape.weights), tape, scaling, received)


def received_activation(tape: Tape, model: Model, local: Local) -> Tensor:
    """What the stage before sends: the residual stream (b, s, h) of this rank. [X10]"""
    shape = (local.micro_batch_size, local.residual_seq_len, model.hidden_size)
    precision = tape.precision
    return Tensor("received activation", shape, precision.weight_dtype)


def head_weight(
    tape: Tape, model: Model, local: Local, token_weight: Tensor | None
) -> Tensor | None:
    """The embedding that the head shares: the same tensor, or on a stage without embedding its own
    copy of it; None where the head has a weight of its own. [X10]"""
    if not model.tie_embeddings or token_weight is not None:
        return token_weight if model.tie_embeddings else None
    return tape.weight("token.weight", local.vocab_size, model.hidden_size)
