"""What a run keeps in the host's memory: one rank's tensors, and a node's. [D13] [W9]

Only what a framework offloads is counted: not the Python process, the data loader or the CUDA driver.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.config.run import Run

from .policy import PINNED, Counted, Kept, Policy


@dataclass(frozen=True)
class HostMemory:
    """Bytes of one rank: page-locked, and ordinary. ranks_per_node: how many share a node."""

    pinned_bytes: int = 0
    pageable_bytes: int = 0
    ranks_per_node: int = 1

    @property
    def rank_bytes(self) -> int:
        return self.pinned_bytes + self.pageable_bytes

    @property
    def node_bytes(self) -> int:
        """Of all the ranks of one node, each counted as this one."""
        return self.rank_bytes * self.ranks_per_node


NOTHING_OFFLOADED = HostMemory()


def host_memory(run: Run, policy: Policy, weights: Counted) -> HostMemory:
    """Of the rank that the policy describes."""
    kept = policy.host(weights, run.training)
    pinned = total_bytes(k for k in kept if k.detail == PINNED)
    return HostMemory(pinned, total_bytes(kept) - pinned,
                      min(run.cluster.gpus, run.cluster.gpus_per_node))


def total_bytes(kept: Iterable[Kept]) -> int:
    return int(sum(tensor.nbytes for k in kept for tensor in k.tensors))
