"""A network as one of N data-parallel ranks, by the framework's own code, in one process.

The process group is PyTorch's `fake` one: its collectives move nothing, so the values are wrong
and the memory is right. NCCL's own buffers do not exist here.
"""

from __future__ import annotations

import os

import torch.distributed as dist

from gpuledger.config.fused_kernels import division_problems
from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training
from gpuledger.errors import NotYetError

from .context_parallel import enable_context_parallel, local_training
from .data_parallel_wrapper import DataParallelWrapped
from .deepspeed_engine import DeepSpeedWrapped
from .frameworks import Wrapped, ddp, fsdp2, undivided
from .fsdp1_wrapper import FSDP1Wrapped

MEASURED = (None, "single", "ddp", "zero-redundancy-optimizer", "fsdp2")


def refuse_undividable(parallel: Parallelism) -> None:
    """Raises NotYetError for what one process cannot be a rank of yet."""
    axes = {"tp": parallel.tp, "pp": parallel.pp, "ep": parallel.ep}
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
    """This process becomes one rank of so many: rank 0, or what the variable RANK says."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        rank = int(os.environ.get("RANK", "0"))
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())


def divide(model: Model, training: Training, parallel: Parallelism, device: str) -> Wrapped:
    """The network on `device`, in the wrapper of the run's framework.

    Raises NotYetError for fused kernels in a framework.
    """
    problems = [*division_problems(parallel, training)]
    if problems:
        raise NotYetError.of(problems)
    if parallel.cp > 1:
        join_group(parallel.dp * parallel.cp * parallel.tp)
        enable_context_parallel(parallel, device)
        training = local_training(training, parallel)
    if parallel.framework is None and parallel.tp > 1:
        from .tensor_parallel import tensor_parallel

        join_group(parallel.tp)
        return tensor_parallel(model, training, parallel, device)
    if parallel.framework in (None, "single"):
        return undivided(model, training, device)
    if parallel.framework == "dataparallel":
        return DataParallelWrapped(model, training, parallel, device)
    join_group(parallel.dp * parallel.tp)
    if parallel.framework == "fsdp2":
        return fsdp2(model, training, parallel, device)
    if parallel.framework == "fsdp1":
        return FSDP1Wrapped(model, training, parallel, device)
    if parallel.framework == "deepspeed":
        return DeepSpeedWrapped(model, training, parallel, device)
    return ddp(undivided(model, training, device).network, parallel.ddp)
