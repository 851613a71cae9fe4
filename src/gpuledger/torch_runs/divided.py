"""A network as rank 0 of N data-parallel ranks, by the framework's own code, in one process.

The process group is PyTorch's `fake` one: its collectives move nothing, so the values are wrong
and the memory is right. NCCL's own buffers do not exist here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training
from gpuledger.errors import NotYetError

from .reference_model.model import INITIAL_STD, LanguageModel
from .reference_model.tables import Tables

MEASURED = (None, "single", "ddp", "zero-redundancy-optimizer", "fsdp2")


def refuse_undividable(parallel: Parallelism) -> None:
    """Raises NotYetError for what one process cannot be a rank of yet."""
    axes = {"tp": parallel.tp, "pp": parallel.pp, "cp": parallel.cp, "ep": parallel.ep}
    for axis, ways in axes.items():
        if ways > 1:
            raise NotYetError(f"{axis} = {ways} cannot be measured yet", f"set {axis}: 1")
    framework, stage = parallel.framework, parallel.zero_stage
    if framework not in MEASURED:
        raise NotYetError(f"framework {framework} cannot be measured on a run yet",
                          "use fsdp2 or ddp, or gpuledger emulate -- python train.py")
    stages = {"zero-redundancy-optimizer": (1,), "fsdp2": (2, 3)}
    if stage not in stages.get(framework or "", (0,)):
        raise NotYetError(
            f"zero_stage {stage} with framework {framework} cannot be measured",
            "stage 0 is ddp, stage 1 zero-redundancy-optimizer, stages 2 and 3 are fsdp2")


def join_group(world_size: int) -> None:
    """This process becomes rank 0 of so many."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())


def divide(
    model: Model, training: Training, parallel: Parallelism, device: str
) -> tuple[LanguageModel, nn.Module]:
    """The network on `device`, and what is called in its place: itself, or a wrapper."""
    if parallel.framework in (None, "single"):
        return plain(model, training, device)
    join_group(parallel.dp)
    if parallel.framework == "fsdp2":
        return fully_sharded(model, training, parallel, device)
    network, _ = plain(model, training, device)
    return network, replicated(network)


def plain(model: Model, training: Training, device: str) -> tuple[LanguageModel, nn.Module]:
    """The whole network, undivided."""
    with torch.device(device):
        network = LanguageModel(model, training)
    return network, network


def fully_sharded(
    model: Model, training: Training, parallel: Parallelism, device: str
) -> tuple[LanguageModel, nn.Module]:
    """FSDP2 around every block and around the whole.

    Made on the meta device, so that only shards are allocated. Stage 2 keeps the gathered
    parameters from forward to backward.
    """
    from torch.distributed.fsdp import fully_shard

    network, _ = plain(model, training, "meta")
    reshard = parallel.zero_stage == 3
    for block in network.blocks:
        fully_shard(block, reshard_after_forward=reshard)
    fully_shard(network, reshard_after_forward=reshard)
    network.to_empty(device=device)
    with torch.device(device):
        network.tables = Tables(model, training)
    for parameter in network.parameters():
        nn.init.normal_(local(parameter), std=INITIAL_STD)
    return network, network


def replicated(network: LanguageModel) -> nn.Module:
    """DistributedDataParallel. Two things the other ranks would do are left out.

    Nobody compares the parameters' shapes, and a hook hands each bucket on: the fake group's
    futures carry no tensor. The bucket is reduced in place without the hook too, so the memory is
    the same.
    """
    from torch.nn.parallel import DistributedDataParallel, distributed

    module: Any = distributed
    module._verify_param_shape_across_processes = lambda *_, **__: None
    wrapper = DistributedDataParallel(network)
    # DDP reads a hook's annotations, which are strings in this file; a lambda has none.
    wrapper.register_comm_hook(None, lambda state, bucket: done(bucket.buffer()))
    return wrapper


def done(bucket: Tensor) -> torch.futures.Future[Tensor]:
    """The bucket as if it had been reduced."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket)
    return future


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return getattr(tensor, "_local_tensor", tensor)
