"""The reference model in torch.nn.DataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training
from gpuledger.errors import InputError

from .frameworks import Wrapped, undivided


class DataParallelWrapped(Wrapped):
    """A replica on each of dp GPUs; a call takes the batch of all of them.

    Raises:
        InputError: the machine has fewer GPUs.
    """

    def __init__(self, model: Model, training: Training, parallel: Parallelism, device: str):
        if torch.cuda.device_count() < parallel.dp:
            raise InputError(
                f"DataParallel over {parallel.dp} GPUs, but this process sees {torch.cuda.device_count()}",
                "lower dp")
        network = undivided(model, training, device).network
        inner = torch.nn.DataParallel(network, device_ids=list(range(parallel.dp)))
        called: Any = Averaged(inner)
        super().__init__(network, called)
        self.batches = parallel.dp


class Averaged(torch.nn.Module):
    """The mean of the replicas' losses."""

    def __init__(self, inner: torch.nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor, targets: Tensor) -> Any:
        """The loss, or (loss, logits of all)."""
        outputs = self.inner(tokens, targets)
        if isinstance(outputs, tuple):
            losses, logits = outputs
            return losses.mean(), logits
        return outputs.mean()
