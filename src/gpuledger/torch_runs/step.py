"""One optimizer step of a run in real PyTorch, with a call to an observer at every boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training

from .divided import divide
from .optimizers import CLIP_NORM, make_optimizer
from .precision import WEIGHT_DTYPE, autocast

Observer = Callable[[str], None]
MODEL_CREATED, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD = (
    "model created",
    "forward",
    "backward",
    "optimizer",
    "zero grad",
)
UNDIVIDED = Parallelism()
INSTANTS = (FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD)


def nobody(instant: str) -> None:
    """The observer that only runs the step."""


class Trainer:
    """Network, optimizer and one batch on `device`; `step()` runs one optimizer step.

    Tokens and targets (b, s) are drawn once and read by every micro-batch: a data loader is not
    part of the account. The gradients of the micro-batches are summed, not averaged.
    """

    def __init__(
        self, model: Model, training: Training, num_microbatches: int, device: str,
        parallel: Parallelism = UNDIVIDED,
    ):
        self.training, self.num_microbatches = training, num_microbatches
        self.device_type = torch.device(device).type
        use_tf32(training.precision == "tf32")
        with default_dtype(WEIGHT_DTYPE[training.precision]):
            self.wrapped = divide(model, training, parallel, device)
        self.precision = training.precision if self.wrapped.autocasts else "fp32"
        self.network = self.wrapped.network
        shared = parallel.framework == "zero-redundancy-optimizer"
        self.optimizer = make_optimizer(
            self.network, self.wrapped.recipe(training), parallel.zero_redundancy if shared else None)
        self.optimizer = self.wrapped.take(self.optimizer, num_microbatches)
        self.called = self.wrapped.called              # an engine is there once it has the optimizer
        self.scaler = torch.amp.GradScaler(device, enabled=training.precision == "fp16-mixed")
        shape = (training.micro_batch_size * self.wrapped.batches, training.seq_len // parallel.cp)
        self.tokens, self.targets = (
            torch.randint(model.vocab_size, shape, device="cpu").to(device) for _ in range(2)
        )

    def step(self, observe: Observer = nobody) -> None:
        """All micro-batches, then the optimizer; calls `observe` with the name of each boundary."""
        for number in range(self.num_microbatches):
            self.wrapped.begin_micro_batch(last=number == self.num_microbatches - 1)
            self.micro_batch(observe)
            self.wrapped.end_micro_batch(last=number == self.num_microbatches - 1)
        if self.wrapped.update():
            observe(OPTIMIZER)
        else:
            self.update()
            observe(OPTIMIZER)
            self.optimizer.zero_grad(set_to_none=self.training.set_to_none)
        observe(ZERO_GRAD)

    def micro_batch(self, observe: Observer) -> None:
        """Forward and backward. The loss lives until the end, and so do kept logits."""
        with autocast(self.precision, self.device_type):
            if self.training.keep_logits:
                loss, logits = self.called(self.tokens, self.targets)
            else:
                loss = self.called(self.tokens, self.targets)
        observe(FORWARD)
        self.backward(loss)
        del loss
        if self.training.keep_logits:
            del logits
        observe(BACKWARD)

    def backward(self, loss: Tensor) -> None:
        """The scaled loss, where there is a scaler, is nobody's variable."""
        if self.wrapped.backward(loss):
            return
        if self.scaler.is_enabled():
            self.scaler.scale(loss).backward()
        else:
            loss.backward()

    def update(self) -> None:
        """Unscale, clip and step, as the run asks."""
        if self.training.gradient_clipping:
            if self.scaler.is_enabled():
                self.scaler.unscale_(self.optimizer)  # type: ignore[arg-type]
            self.wrapped.clip(CLIP_NORM)
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer)  # type: ignore[arg-type]
            self.scaler.update()
        else:
            self.optimizer.step()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New floating-point tensors have this dtype inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def use_tf32(allowed: bool) -> None:
    """Whether fp32 products and convolutions may round their factors to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
