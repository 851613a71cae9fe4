"""The frameworks: what each keeps of a model on one rank, and its own buffers."""
from __future__ import annotations

from gpuledger.config.parallelism import Parallelism

from ..policy import Policy
from ..zero import Division


def policy_of(parallel: Parallelism, rank: int | None = None) -> Policy:
    """The policy of the rank that needs most, or of this one."""
    return Division(parallel.zero_stage, parallel.dp)
