"""The reference model in FullyShardedDataParallel, as a user would wrap it."""

from __future__ import annotations

from typing import Any

import torch

from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training

from .frameworks import DTYPES, Wrapped, default_dtype, undivided
from .reference_model.block import Block
from .reference_model.tables import Tables

STRATEGIES = {
    (3, False): "FULL_SHARD", (2, False): "SHARD_GRAD_OP", (0, False): "NO_SHARD",
    (3, True): "HYBRID_SHARD", (2, True): "_HYBRID_SHARD_ZERO2",
}


class FSDP1Wrapped(Wrapped):
    """Every block and the whole model in a flat parameter of its own."""

    def __init__(self, model: Model, training: Training, parallel: Parallelism, device: str):
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        options = parallel.fsdp1
        network: Any = undivided(model, training, device).network
        with torch.device(device), default_dtype(DTYPES[options.param_dtype]):
            network.tables = Tables(model, training)
        wrapper: Any = FullyShardedDataParallel(
            network, auto_wrap_policy=ModuleWrapPolicy({Block}), **keywords(parallel, device))
        super().__init__(wrapper, wrapper, autocasts=options.param_dtype is None)

    def clip(self, norm: float) -> None:
        """The norm over all ranks."""
        wrapper: Any = self.called
        wrapper.clip_grad_norm_(norm)


def keywords(parallel: Parallelism, device: str) -> dict[str, Any]:
    """The arguments of FullyShardedDataParallel that these options mean."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy

    options = parallel.fsdp1
    hybrid = options.replicate > 1
    prefetch = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST}
    mixed = MixedPrecision(param_dtype=DTYPES[options.param_dtype],
                           reduce_dtype=DTYPES[options.reduce_dtype])
    given: dict[str, Any] = {
        "sharding_strategy": ShardingStrategy[STRATEGIES[parallel.zero_stage, hybrid]],
        "mixed_precision": mixed if options.param_dtype or options.reduce_dtype else None,
        "use_orig_params": options.use_orig_params, "device_id": torch.cuda.current_device(),
        "backward_prefetch": prefetch.get(options.backward_prefetch),
        "forward_prefetch": options.forward_prefetch,
    }
    if hybrid:
        shape = (options.replicate, parallel.dp // options.replicate)
        given["device_mesh"] = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))
    return given
