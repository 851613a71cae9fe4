"""The frameworks: what each keeps of a model on one rank, and its own buffers."""
from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuledger.config.parallelism import Parallelism
from gpuledger.config.run import Run
from gpuledger.errors import Problem

from ..policy import Policy
from ..zero import Division

MODELLED = (None, "single", "ddp", "dataparallel", "zero-redundancy-optimizer", "fsdp2", "fsdp1",
            "deepspeed", "megatron")


def policy_of(parallel: Parallelism, rank: int | None = None) -> Policy:
    """The policy of the rank that needs most, or of this one."""
    make = POLICIES.get(parallel.framework or "single")
    if make is None:
        return Division(parallel.zero_stage, parallel.dp * parallel.cp)
    return make(parallel, rank)


# A framework's files are read when a run names it: a run that names none starts the sooner.
def _fsdp2(parallel: Parallelism, rank: int | None) -> Policy:
    from .fsdp2 import FSDP2

    options = parallel.fsdp2
    sharing = parallel.dp * parallel.cp // options.replicate
    return FSDP2(sharing, parallel.zero_stage == 3, options,
                 (rank or 0) // parallel.tp % sharing, parallel.tp > 1)


def _data_parallel(parallel: Parallelism, rank: int | None) -> Policy:
    from .data_parallel import DataParallel

    return DataParallel(parallel.dp)


def _fsdp1(parallel: Parallelism, rank: int | None) -> Policy:
    from .fsdp1 import fsdp1_of

    return fsdp1_of(parallel, rank)


def _ddp(parallel: Parallelism, rank: int | None) -> Policy:
    from .ddp import DDP

    return DDP(parallel.ddp)


def _zero_redundancy(parallel: Parallelism, rank: int | None) -> Policy:
    from .zero_redundancy import ZeroRedundancy

    return ZeroRedundancy(parallel.ddp, parallel.dp * parallel.cp, rank,
                          parallel.zero_redundancy.parameters_as_bucket_view)


def _deepspeed(parallel: Parallelism, rank: int | None) -> Policy:
    from .deepspeed import DeepSpeed
    from .stage0 import Stage0
    from .stage3 import Stage3

    if parallel.zero_stage == 0:
        return Stage0()
    if parallel.zero_stage == 3:
        return Stage3(parallel.dp, parallel.deepspeed, rank or 0)
    return DeepSpeed(parallel.zero_stage, parallel.dp, parallel.deepspeed, rank)


def _megatron(parallel: Parallelism, rank: int | None) -> Policy:
    from .megatron.policy import Megatron

    return Megatron(parallel)


POLICIES: dict[str, Callable[[Parallelism, int | None], Policy]] = {
    "fsdp2": _fsdp2, "dataparallel": _data_parallel, "fsdp1": _fsdp1, "ddp": _ddp,
    "zero-redundancy-optimizer": _zero_redundancy, "deepspeed": _deepspeed, "megatron": _megatron}


def unmodelled(run: Run) -> Iterator[Problem]:
    """What has no account yet, or what the framework itself does not do."""
    training, parallel = run.training, run.parallel
    if parallel.framework not in MODELLED:
        yield Problem(
            f"framework = {parallel.framework}: its own buffers are not modelled yet",
            "leave framework out: the states, gathers and activations, without its buffers")
    if parallel.framework in ("ddp", "zero-redundancy-optimizer"):
        from .ddp import unmodelled_ddp
        yield from unmodelled_ddp(training, parallel.ddp)
    if parallel.framework == "zero-redundancy-optimizer":
        from .zero_redundancy import unmodelled_zero_redundancy
        yield from unmodelled_zero_redundancy(training)
    if parallel.framework == "fsdp2":
        from .fsdp2 import unmodelled_fsdp2
        yield from unmodelled_fsdp2(training, parallel.fsdp2)
    if parallel.framework == "dataparallel":
        from .data_parallel import unmodelled_data_parallel
        yield from unmodelled_data_parallel(run)
    if parallel.framework == "fsdp1":
        from .fsdp1 import unmodelled_fsdp1
        yield from unmodelled_fsdp1(training, parallel)
    if parallel.framework == "megatron":
        from .megatron.policy import unmodelled_megatron
        yield from unmodelled_megatron(run)
    if parallel.framework == "deepspeed":
        from .deepspeed import unmodelled_deepspeed
        yield from unmodelled_deepspeed(run)
