"""Final norm, output projection and loss."""

from __future__ import annotations

from torch import Tensor, nn

from gpuledger.config.fused_kernels import FusedKernels
from gpuledger.config.model import Model
from gpuledger.config.training import Training

from .fused import linear_cross_entropy
from .losses import (
    Pieces,
    chunked_cross_entropy,
    cross_entropy,
    fused_linear_cross_entropy,
    softcap,
)
from .norm import norm


class Head(nn.Module):
    """(b, s, h) and targets (b, s) -> the loss, a scalar; with keep_logits (loss, logits).

    The logits (b, s, v) that a caller keeps are those that the loss reads: fp32 with fp32_logits.
    """

    def __init__(self, model: Model, training: Training):
        super().__init__()
        self.training_record = training
        self.kernels = FusedKernels.of(model, training)
        self.cap = model.logits_softcap
        self.norm = norm(model, training)
        self.output = nn.Linear(model.hidden_size, model.vocab_size, bias=model.bias.head)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        training = self.training_record
        if training.loss == "chunked":
            settings = Pieces(self.cap, training.loss_chunks, training.kernels == "fused")
            return chunked_cross_entropy(self.output, self.norm(x), targets, settings)
        if self.kernels.loss == "linear":
            return linear_cross_entropy(
                self.output, self.norm(x), targets, training.loss_chunks
            )
        if training.loss == "fused_linear":
            return fused_linear_cross_entropy(
                self.output, self.norm(x), targets, training.loss_chunks
            )
        logits = softcap(self.output(self.norm(x)), self.cap)
        if training.loss == "fp32_logits":
            logits = logits.float()
        loss = cross_entropy(logits, targets, fused=self.kernels.loss is not None)
        return (loss, logits) if training.keep_logits else loss
