"""What a run keeps in the host's memory: one rank's tensors, and a node's. [D13] [W9]

Only what a framework offloads is counted: not the Python process, the data loader or the CUDA driver.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.config.run import Run
from gpuledger.config.training import EveryK
from gpuledger.program.local import Local
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.tensor import ITEMSIZE

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
    return HostMemory(pinned + offloaded_inputs(run, policy), total_bytes(kept) - pinned,
                      ranks_per_node(run))


def ranks_per_node(run: Run) -> int:
    """Ranks that share a node's memory."""
    return min(run.cluster.gpus, run.cluster.gpus_per_node)


def offloads(run: Run) -> bool:
    """Anything of the run waits in the host's memory."""
    parallel = run.parallel
    deepspeed = parallel.deepspeed
    devices = deepspeed.offload_optimizer.device, deepspeed.offload_param.device
    return run.training.offload != "none" or parallel.fsdp2.cpu_offload or "cpu" in devices


def offloaded_inputs(run: Run, policy: Policy) -> int:
    """Inputs of recomputed blocks that wait for backward in pinned memory. [S19]"""
    training, layers = policy.computed(run.training), run.model.num_layers
    if training.offload == "none":
        return 0
    recompute = training.recompute
    blocks = -(-layers // recompute.every) if isinstance(recompute, EveryK) else layers
    local = Local.of_rank(run.model, training, run.parallel)
    tokens = local.micro_batch_size * local.residual_seq_len
    dtype = PRECISIONS[training.precision].weight_dtype
    return int(blocks * tokens * run.model.hidden_size * ITEMSIZE[dtype])


def total_bytes(kept: Iterable[Kept]) -> int:
    return int(sum(tensor.nbytes for k in kept for tensor in k.tensors))
