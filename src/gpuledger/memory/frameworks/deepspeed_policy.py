"""What DeepSpeed's stages 1 to 3 have in common."""
from __future__ import annotations

from gpuledger.config.frameworks import DeepSpeedOptions
from gpuledger.config.training import Training

from ..policy import PAGEABLE, PINNED, Policy


class DeepSpeedPolicy(Policy):
    """One rank of an engine that keeps fp32 masters of a bf16 model, divided over the ranks."""

    options: DeepSpeedOptions

    @property
    def divides_matrices(self) -> bool:
        return True

    @property
    def walks_layers_once(self) -> bool:
        """Buckets, partitions and prefetching span layers as their sizes have it."""
        return False

    @property
    def offloads_optimizer(self) -> bool:
        """Masters, states and gradients of the partition are in the host's memory. [D13]"""
        return self.options.offload_optimizer.device == "cpu"

    @property
    def offload_memory(self) -> str:
        """Of what the optimizer needs there: page-locked where that is asked for. [D13]"""
        return PINNED if self.options.offload_optimizer.pin_memory else PAGEABLE

    def computed(self, training: Training) -> Training:
        """The model is bf16; its fp32 masters are the engine's."""
        return training.model_copy(update={"precision": "bf16", "set_to_none": True})
