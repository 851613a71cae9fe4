"""Final norm, output projection and loss."""
from __future__ import annotations

from gpuledger.config.model import Model
from gpuledger.config.training import Training

from . import operators as op
from .attention_kernels import softcap
from .fused_kernels import linear_cross_entropy
from .fused_losses import fused_linear_cross_entropy
from .local import Local
from .losses import chunked_cross_entropy
from .norm import NormWeights, norm
from .program import Tape
from .tensor import Tensor
from .tensor_parallel import column_input, column_linear, vocabulary_cross_entropy


def head(tape: Tape, x: Tensor, model: Model, training: Training, local: Local,
         tied_weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(b, s, h) -> the loss, a scalar, and the logits where the caller keeps them."""
    final_norm = NormWeights.of(tape, "final norm", model, training)
    weights = head_weights(tape, model, local, tied_weight)
    cap = model.logits_softcap is not None
    with tape.part("head", x):
        x = norm(tape, final_norm, x)
        if training.loss == "chunked":
            return chunked_cross_entropy(
                tape, weights, x, cap=cap, chunks=training.loss_chunks
            ), None
        if tape.kernels.loss == "linear":
            return linear_cross_entropy(tape, weights.weight, x, training.loss_chunks), None
        if training.loss == "fused_linear":
            return fused_linear_cross_entropy(tape, weights, x, training.loss_chunks), None
        with tape.part("output", x):
            logits = column_linear(tape, local, weights, column_input(tape, local, x))
        if cap:
            logits = softcap(tape, "logits", logits)
        if training.loss == "fp32_logits":
            logits = op.cast(tape, logits, "float32")
        tape.hold(logits)
        return vocabulary_cross_entropy(
            tape, local, logits
        ), logits if training.keep_logits else None


def head_weights(
    tape: Tape, model: Model, local: Local, tied_weight: Tensor | None
) -> op.LinearWeights:
    """(v, h), perhaps the token embedding's own, and perhaps a bias (v)."""
    if tied_weight is None:
        return op.LinearWeights.of(tape, "head", model.hidden_size, local.vocab_size,
                                   bias=model.bias.head)
    offset = tape.weight("head.bias", local.vocab_size) if model.bias.head else None
    return op.LinearWeights("head", tied_weight, offset)
