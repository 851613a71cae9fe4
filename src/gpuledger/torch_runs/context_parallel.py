"""PyTorch's context parallelism around the reference model: attention over all ranks' tokens."""

from __future__ import annotations

from typing import Any

from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training

ROTATE_METHODS = {"ring": "alltoall", "all-gather": "allgather"}


def local_training(training: Training, parallel: Parallelism) -> Training:
    """The step as one rank sees it: its tokens, and tables of so many rows."""
    return training.model_copy(update={"seq_len": training.seq_len // parallel.cp})


def enable_context_parallel(parallel: Parallelism, device: str) -> None:
    """From here on F.scaled_dot_product_attention is PyTorch's ring, in this process.

    What `context_parallel()` does on entry but for dividing the batch, which is made divided here.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention
    from torch.distributed.tensor.experimental._context_parallel import (
        _attention as implementation,
    )

    mesh = init_device_mesh(device, (parallel.dp, parallel.cp, parallel.tp),
                            mesh_dim_names=("dp", "cp", "tp"))
    _attention.set_rotate_method(ROTATE_METHODS[parallel.context_exchange])
    module: Any = implementation
    module._cp_options.enable_load_balance = True
    module._enable_context_parallel_dispatcher_impl(seq_dim=2, mesh=mesh["cp"])
