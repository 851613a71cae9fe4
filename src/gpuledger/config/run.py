"""`Run`: everything that an answer depends on."""
from __future__ import annotations

from pydantic import Field

from .cluster import Cluster
from .model import Model
from .parallelism import Parallelism
from .record import Record
from .training import Training


class Run(Record):
    """A model, its training step, how it is divided and on what. Fully resolved: no names left."""

    name: str = Field(default="run", description="how reports call it")
    model: Model
    training: Training
    parallel: Parallelism
    cluster: Cluster

    @property
    def num_microbatches(self) -> int:
        """Forward/backward passes of one rank in one optimizer step."""
        return self.training.global_batch_size // (self.training.micro_batch_size * self.parallel.dp)
