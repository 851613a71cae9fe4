"""Megatron's contiguous parameter and gradient buffers, and a rank's shards of them. [M11] [M12]

Parameters lie in a buffer in reverse order. With the distributed optimizer each start is a multiple of 64
elements and each bucket ends at a multiple of lcm(ranks, 128), so that the ranks' shards are equal; a
tied embedding on a stage of its own has its own bucket. Ref: Megatron-LM
megatron/core/distributed/param_and_grad_buffer.py, megatron/core/optimizer/distrib_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from gpuledger.config.megatron import MegatronOptions
from gpuledger.config.parallelism import Parallelism
from gpuledger.program.sizes import round_up
from gpuledger.program.tensor import Tensor

PARAMETER_ALIGNMENT, BUCKET_ALIGNMENT = 64, 128
NCCL_ALIGNMENT = 2**16
BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK = 40_000_000, 1_000_000


@dataclass(frozen=True)
class Placed:
    """A parameter at elements start to end of a buffer, in one of its buckets."""

    weight: Tensor
    start: int
    end: int
    bucket: int


@dataclass(frozen=True)
class Buffer:
    """One model chunk's buffer: where its parameters lie, and where its buckets begin and end."""

    placed: tuple[Placed, ...]
    buckets: tuple[tuple[int, int], ...]

    @property
    def numel(self) -> int:
        """Elements, padding included."""
        return self.buckets[-1][1]

    @property
    def padding_elements(self) -> int:
        return self.numel - sum(int(placed.weight.numel) for placed in self.placed)

    def shards(self, ranks: int, rank: int) -> list[tuple[Tensor, int]]:
        """The parameters that this rank's part of each bucket touches, and how many elements of each,
        in the order of the model."""
        found = []
        for placed in reversed(self.placed):
            begin, end = self.buckets[placed.bucket]
            width = (end - begin) // ranks
            first = begin + rank * width
            numel = min(placed.end, first + width) - max(placed.start, first)
            if numel > 0:
                found.append((placed.weight, numel))
        return found


def shard_ranks(parallel: Parallelism) -> int:
    """Ranks that divide a buffer: data-parallel times context-parallel, per optimizer instance."""
    return parallel.dp * parallel.cp // parallel.megatron.distributed_optimizer_instances


def bucket_elements(parallel: Parallelism, *, first_chunk: bool) -> int | None:
    """Elements at which a bucket closes; None is one bucket. Only the first chunk of the first stage has
    more than one, and only where reductions overlap. Ref: distributed_data_parallel.py."""
    if not (parallel.megatron.overlap_grad_reduce and first_chunk):
        return None
    ranks = parallel.dp * parallel.cp
    return max(BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * ranks)


def lay_out(weights: Sequence[Tensor], parallel: Parallelism, limit: int | None,
            alone: Tensor | None = None) -> Buffer:
    """The buffer of one chunk; `alone` is a shared embedding with a bucket of its own."""
    distributed = parallel.zero_stage == 1
    multiple = _bucket_multiple(parallel.megatron, shard_ranks(parallel))
    placed: list[Placed] = []
    buckets: list[tuple[int, int]] = []
    start = bucket_start = members = 0

    def close(end: int) -> int:
        end = int(round_up(end, multiple)) if distributed else end
        buckets.append((bucket_start, end))
        return end

    for weight in reversed(weights):
        if distributed:
            start = int(round_up(start, PARAMETER_ALIGNMENT))
        own = weight is alone and distributed
        if own and members:
            bucket_start = start = close(start)
            members = 0
        end = start + int(weight.numel)
        placed.append(Placed(weight, start, end, len(buckets)))
        members += 1
        start = end
        if own or (limit is not None and end - bucket_start >= limit):
            bucket_start = start = close(end)
            members = 0
    if members:
        close(start)
    return Buffer(tuple(placed), tuple(buckets))


def _bucket_multiple(options: MegatronOptions, ranks: int) -> int:
    aligned = lcm(ranks, BUCKET_ALIGNMENT)
    return lcm(aligned, NCCL_ALIGNMENT) if options.pad_buckets_for_high_nccl_busbw else aligned
