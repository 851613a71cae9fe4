"""The frameworks: what each keeps of a model on one rank, and its own buffers."""
from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.parallelism import Parallelism
from gpuledger.config.run import Run
from gpuledger.errors import Problem

from ..policy import Policy
from ..zero import Division
from .data_parallel import DataParallel, unmodelled_data_parallel
from .ddp import DDP, unmodelled_ddp
from .deepspeed import DeepSpeed, unmodelled_deepspeed
from .fsdp1 import fsdp1_of, unmodelled_fsdp1
from .fsdp2 import FSDP2, unmodelled_fsdp2
from .megatron.policy import Megatron, unmodelled_megatron
from .stage0 import Stage0
from .stage3 import Stage3
from .zero_redundancy import ZeroRedundancy, unmodelled_zero_redundancy

MODELLED = (None, "single", "ddp", "dataparallel", "zero-redundancy-optimizer", "fsdp2", "fsdp1",
            "deepspeed", "megatron")


def policy_of(parallel: Parallelism, rank: int | None = None) -> Policy:
    """The policy of the rank that needs most, or of this one."""
    if parallel.framework == "fsdp2":
        options = parallel.fsdp2
        sharing = parallel.dp * parallel.cp // options.replicate
        return FSDP2(sharing, parallel.zero_stage == 3, options,
                     (rank or 0) // parallel.tp % sharing, parallel.tp > 1)
    if parallel.framework == "dataparallel":
        return DataParallel(parallel.dp)
    if parallel.framework == "fsdp1":
        return fsdp1_of(parallel, rank)
    if parallel.framework == "ddp":
        return DDP(parallel.ddp)
    if parallel.framework == "zero-redundancy-optimizer":
        return ZeroRedundancy(parallel.ddp, parallel.dp * parallel.cp, rank,
                              parallel.zero_redundancy.parameters_as_bucket_view)
    if parallel.framework == "deepspeed" and parallel.zero_stage in (1, 2):
        return DeepSpeed(parallel.zero_stage, parallel.dp, parallel.deepspeed, rank)
    if parallel.framework == "deepspeed" and parallel.zero_stage == 0:
        return Stage0()
    if parallel.framework == "deepspeed" and parallel.zero_stage == 3:
        return Stage3(parallel.dp, parallel.deepspeed, rank or 0)
    if parallel.framework == "megatron":
        return Megatron(parallel)
    return Division(parallel.zero_stage, parallel.dp * parallel.cp)


def unmodelled(run: Run) -> Iterator[Problem]:
    """What has no account yet, or what the framework itself does not do."""
    training, parallel = run.training, run.parallel
    if parallel.framework not in MODELLED:
        yield Problem(
            f"framework = {parallel.framework}: its own buffers are not modelled yet",
            "leave framework out: the states, gathers and activations, without its buffers")
    if parallel.framework in ("ddp", "zero-redundancy-optimizer"):
        yield from unmodelled_ddp(training, parallel.ddp)
    if parallel.framework == "zero-redundancy-optimizer":
        yield from unmodelled_zero_redundancy(training)
    if parallel.framework == "fsdp2":
        yield from unmodelled_fsdp2(training, parallel.fsdp2)
    if parallel.framework == "dataparallel":
        yield from unmodelled_data_parallel(run)
    if parallel.framework == "fsdp1":
        yield from unmodelled_fsdp1(training, parallel)
    if parallel.framework == "megatron":
        yield from unmodelled_megatron(run)
    if parallel.framework == "deepspeed":
        yield from unmodelled_deepspeed(run)
