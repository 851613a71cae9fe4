"""Decoder block: attention and MLP around the residual stream, with norms where the model has them.
"""
from __future__ import annotations

from collections.abc import Callable

from gpuledger.config.model import Model
from gpuledger.config.training import EveryK, Recompute, Training

from . import fused_kernels
from . import operators as op
from .attention import attention
from .local import Local
from .mlp import mlp
from .norm import NormWeights, norm
from .program import Tape
from .tensor import Tensor


def block(tape: Tape, layer: int, x: Tensor, model: Model, training: Training,
          local: Local, first_layer: int = 0) -> Tensor:
    """(b, s, h) -> (b, s, h). The caller's x lives until the block returns.

    layer counts from the first layer of this rank, which is the model's number first_layer.
    """
    number = first_layer + layer

    def attend(y: Tensor) -> Tensor:
        return attention(tape, y, model, training, local, number)

    def sublayer(name: str, y: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Normed before, after, or both; parameters in the order of the modules."""
        weights = NormWeights.of(tape, f"{name} norm", model, training)
        if model.norm_position == "post":
            return norm(tape, weights, function(y))
        y = function(norm(tape, weights, y))
        if model.norm_position == "sandwich":
            y = norm(tape, NormWeights.of(tape, f"{name} post norm", model, training), y)
        return y

    with tape.part(f"block {layer}", x, layer=layer,
                   checkpoint=recomputes(training.recompute, number),
                   per_op=training.recompute == "per_op",
                   offloads=training.offload == "block_inputs"):
        if model.parallel_residual:
            return in_parallel(tape, x, model, training, local, number)
        if tape.kernels.norm and model.norm_position != "post":
            return fused_sum(tape, x, model, training, local, attend)
        y = sublayer("attention", x, attend)
        x = op.add(tape, "attention residual", x, y)
        tape.hold(x)
        y = sublayer("mlp", x, lambda y: mlp(tape, y, model, local))
        return op.add(tape, "mlp residual", x, y)


def fused_sum(tape: Tape, x: Tensor, model: Model, training: Training, local: Local,
              attend: Callable[[Tensor], Tensor]) -> Tensor:
    """With fused kernels the MLP's norm forms the sum that it reads."""
    def weights(name: str) -> NormWeights:
        return NormWeights.of(tape, name, model, training)

    sandwich = model.norm_position == "sandwich"
    y = attend(norm(tape, weights("attention norm"), x))
    if sandwich:
        y = norm(tape, weights("attention post norm"), y)
    y, x = fused_kernels.add_norm(tape, weights("mlp norm"), y, x)
    tape.hold(y, x)
    y = mlp(tape, y, model, local)
    if sandwich:
        y = norm(tape, weights("mlp post norm"), y)
    return op.add(tape, "mlp residual", x, y)


def in_parallel(tape: Tape, x: Tensor, model: Model, training: Training, local: Local,
                layer: int) -> Tensor:
    """Attention and MLP read the same x, through one shared norm or a norm each."""
    y = norm(tape, NormWeights.of(tape, "attention norm", model, training), x)
    if model.shared_norm:
        y.dtensor = tape.divided_tokens
        tape.hold(y)
    attended = op.add(tape, "attention residual", x,
                      attention(tape, y, model, training, local, layer))
    if not model.shared_norm:
        y = norm(tape, NormWeights.of(tape, "mlp norm", model, training), x)
    return op.add(tape, "mlp residual", attended, mlp(tape, y, model, local))


def recomputes(recompute: Recompute, layer: int) -> bool:
    """This whole block is run again in the backward pass."""
    if isinstance(recompute, EveryK):
        return layer % recompute.every == 0
    return recompute in ("full", "per_op")
