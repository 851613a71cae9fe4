"""Process groups of a run that become NCCL communicators, and what they are used for.

A communicator is made at its first collective, so only groups that communicate count. Ranks lie in
the order tp, cp, dp, pp, tp fastest. Ref: Megatron-LM megatron/core/parallel_state.py; torchtitan
torchtitan/distributed/parallel_dims.py; torch/distributed/fsdp/_fully_shard; DeepSpeed
deepspeed/runtime/zero.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gpuledger.config.run import Run

Use = Literal["all-reduce", "gather and scatter", "send and receive"]


@dataclass(frozen=True)
class Communicator:
    """ranks GPUs, `stride` apart; peers: how many of them this rank sends to or receives from.

    certain: it surely communicates; others are made by some versions or options alone.
    """

    name: str
    ranks: int
    stride: int
    use: Use
    peers: int = 0
    certain: bool = True

    def ranks_in_node(self, gpus_per_node: int) -> int:
        """How many of its ranks share this GPU's node."""
        return max(1, min(self.ranks, gpus_per_node // self.stride))


def communicators(run: Run) -> list[Communicator]:
    """All of more than one rank."""
    return [group for group in (*model_parallel(run), *data_parallel(run)) if group.ranks > 1]


def model_parallel(run: Run) -> Iterator[Communicator]:
    """Tensor, context and pipeline parallelism."""
    parallel = run.parallel
    tp_use: Use = "gather and scatter" if parallel.sequence_parallel else "all-reduce"
    yield Communicator("tp", parallel.tp, 1, tp_use)
    ring = parallel.context_exchange == "ring"
    yield Communicator("cp", parallel.cp, parallel.tp, "send and receive" if ring else
                       "gather and scatter", peers=min(2, parallel.cp - 1) if ring else 0)
    inner = parallel.tp * parallel.cp * parallel.dp
    yield Communicator("pp", parallel.pp, inner, "send and receive",
                       peers=min(2, parallel.pp - 1))
    if parallel.pp > 1 and run.model.tie_embeddings:
        yield Communicator("embedding (first and last stage)", 2, inner * (parallel.pp - 1),
                           "all-reduce")


def data_parallel(run: Run) -> Iterator[Communicator]:
    """The framework's own groups."""
    parallel = run.parallel
    sharing, stride = parallel.dp * parallel.cp, parallel.tp
    framework = parallel.framework
    if framework == "fsdp2":
        copies = parallel.fsdp2.replicate
        shards = sharing // copies
        yield Communicator("fsdp shards", shards, stride, "gather and scatter")
        yield Communicator("fsdp copies", copies, stride * shards, "all-reduce")
        yield Communicator("world", parallel.world_size, 1, "all-reduce", certain=False)
    elif framework == "megatron":
        shares = parallel.zero_stage > 0
        yield Communicator("dp-cp", sharing, stride,
                           "gather and scatter" if shares else "all-reduce")
        yield Communicator("model parallel", parallel.tp * parallel.pp, 1, "all-reduce")
        yield Communicator("world", parallel.world_size, 1, "all-reduce", certain=False)
        yield Communicator("dp", parallel.dp, stride * parallel.cp, "all-reduce", certain=False)
    elif parallel.zero_stage >= 2:
        yield Communicator("dp", sharing, stride, "gather and scatter")
        yield Communicator("world", parallel.world_size, 1, "all-reduce", certain=False)
    else:
        yield Communicator("dp", sharing, stride, "all-reduce")
