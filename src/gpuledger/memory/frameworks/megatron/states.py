"""What a Megatron rank keeps between steps: parameters, main gradients, main parameters, moments. [M13]

bf16 reduces and keeps gradients in fp32 (accumulate_allreduce_grads_in_fp32); fp16 keeps them in fp16 and
has an fp32 copy from the update to the next zero_grad. The distributed optimizer divides everything but
parameters and gradients: 6 + 12 / d bytes a parameter. The precision-aware optimizer reads 16-bit
gradients as they are, and keeps states of other dtypes with a scale each.
Ref: Megatron-LM megatron/training/arguments.py, megatron/core/optimizer/optimizer.py,
distrib_optimizer.py; TransformerEngine pytorch/optimizers/fused_adam.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuledger.config.parallelism import Parallelism
from gpuledger.config.run import Run
from gpuledger.program.tensor import ITEMSIZE, Tensor

from ...allocator.sizes import MIN_BLOCK_BYTES
from ...states import State
from .buffers import Buffer, bucket_elements, lay_out, shard_ranks


@dataclass(frozen=True)
class Kept:
    """Tensors of one kind, in the order in which they are made."""

    category: str
    name: str
    tensors: tuple[Tensor, ...]
    padding_bytes: int = 0
    equation: str = "M13"


@dataclass(frozen=True)
class Chunk:
    """The weights of a model chunk; `tied` is a copy of the embedding that another stage has too."""

    weights: tuple[Tensor, ...]
    tied: Tensor | None


class RankStates:
    """All that one rank of a stage keeps. dp_rank: which of the ranks that divide the optimizer."""

    def __init__(self, chunks: Sequence[Chunk], parallel: Parallelism, stage: int, dp_rank: int = 0):
        self.chunks, self.parallel, self.options = chunks, parallel, parallel.megatron
        self.distributed = parallel.zero_stage == 1
        self.buffers = [
            lay_out(chunk.weights, parallel,
                    bucket_elements(parallel, first_chunk=stage == 0 and number == 0), chunk.tied)
            for number, chunk in enumerate(chunks)]
        ranks = shard_ranks(parallel)
        self.shards = [self._updated(chunk, buffer, ranks, dp_rank % ranks)
                       for chunk, buffer in zip(chunks, self.buffers, strict=True)]

    def _updated(self, chunk: Chunk, buffer: Buffer, ranks: int, rank: int) -> list[tuple[Tensor, int]]:
        if self.distributed:
            return buffer.shards(ranks, rank)
        return [(weight, int(weight.numel)) for weight in chunk.weights]

    @property
    def gradient_dtype(self) -> str:
        """Of the main gradients."""
        options = self.options
        if options.params_dtype == "float16":
            return "float32" if options.accumulate_allreduce_grads_in_fp32 else "float16"
        narrow = options.reduce_gradients_in_16_bit or options.main_grads_dtype == "bfloat16"
        return "bfloat16" if narrow else "float32"

    @property
    def copies_gradients(self) -> bool:
        """The update works on fp32 copies of 16-bit gradients, which stay until zero_grad."""
        return self.gradient_dtype != "float32" and not self.options.use_precision_aware_optimizer

    @property
    def keeps_remainders(self) -> bool:
        """Of the main parameters, only the 16 bits that bf16 parameters lack."""
        options = self.options
        return (options.use_precision_aware_optimizer and options.store_param_remainders
                and options.params_dtype == "bfloat16" and options.main_params_dtype == "float32")

    @property
    def order(self) -> list[tuple[Tensor, int]]:
        """Shards as the optimizer's groups have them: with weight decay first, biases and norms last."""
        shards = [shard for chunk in self.shards for shard in chunk]
        return [s for s in shards if decays(s[0])] + [s for s in shards if not decays(s[0])]

    def flat(self, name: str, numel: int, dtype: str, role: str) -> Tensor:
        return Tensor(name, (numel,), dtype, role)

    def parameters(self) -> Kept:
        """16-bit parameters: one by one, or views of one buffer per chunk."""
        dtype = self.options.params_dtype
        if not self.distributed:
            weights = [w for chunk in self.chunks for w in chunk.weights]
            return Kept("parameters", "parameters", tuple(weights))
        buffers = tuple(self.flat("parameter buffer", b.numel, dtype, "parameter") for b in self.buffers)
        return Kept("parameters", "parameter buffers", buffers, self._padding(dtype))

    def gradients(self) -> Kept:
        buffers = tuple(self.flat("gradient buffer", b.numel, self.gradient_dtype, "gradient")
                        for b in self.buffers)
        return Kept("gradients", "gradient buffers", buffers, self._padding(self.gradient_dtype))

    def _padding(self, dtype: str) -> int:
        return sum(buffer.padding_elements for buffer in self.buffers) * ITEMSIZE[dtype]

    def masters(self) -> Kept:
        if self.keeps_remainders:
            return self._of_shards("main parameters, lower 16 bits", "int16")
        return self._of_shards("main parameters", self.options.main_params_dtype)

    def moments(self) -> tuple[Kept, Kept]:
        return (self._of_shards("exp_avg", self.options.exp_avg_dtype),
                self._of_shards("exp_avg_sq", self.options.exp_avg_sq_dtype))

    def gradient_copies(self) -> Kept:
        return self._of_shards("fp32 gradients of the update", "float32", "gradients")

    @property
    def scaled(self) -> tuple[str, ...]:
        """Dtypes of a shard's states that are not fp32: each has a scale, and an fp32 copy in the update."""
        options = self.options
        if not options.use_precision_aware_optimizer:
            return ()
        dtypes = (options.exp_avg_dtype, options.exp_avg_sq_dtype, options.main_params_dtype)
        return tuple(dtype for dtype in dtypes if dtype != "float32")

    def scales(self) -> Kept:
        """One number per shard and state that is not fp32."""
        count = len(self.scaled) * len(self.order)
        return Kept("optimizer", "scales of states",
                    tuple(Tensor("scale", (1,), "float32") for _ in range(count)))

    def unscaled(self) -> list[list[Tensor]]:
        """For each of the optimizer's groups the fp32 copies of states that its update makes. [M20]"""
        groups = ([s for s in self.order if decays(s[0])], [s for s in self.order if not decays(s[0])])
        return [[Tensor(f"fp32 copy of a {dtype} state", (numel,), "float32")
                 for _, numel in group for dtype in self.scaled] for group in groups]

    def _of_shards(self, name: str, dtype: str, category: str = "optimizer") -> Kept:
        return Kept(category, name, tuple(Tensor(name, (numel,), dtype) for _, numel in self.order))

    def all(self) -> list[Kept]:
        """What lives through every step."""
        kept = [self.parameters(), self.gradients(), self.masters(), *self.moments(), self.scales()]
        return [k for k in kept if k.tensors]


def decays(weight: Tensor) -> bool:
    """Biases and norms have no weight decay."""
    return len(weight.shape) > 1


def as_states(kept: Iterable[Kept]) -> list[State]:
    """Rows of the ledger."""
    return [State(k.category, k.name, len(k.tensors), sum(int(t.nbytes) for t in k.tensors),
                  k.padding_bytes, sum(int(-t.nbytes % MIN_BLOCK_BYTES) for t in k.tensors), k.equation,
                  f"{sum(int(t.numel) for t in k.tensors):,} elements of {k.tensors[0].dtype}")
            for k in kept if k.tensors]


def chunks_of(weights: Sequence[Sequence[Tensor]], run: Run) -> list[Chunk]:
    """The chunks' weights; on a stage without embedding a tied output layer is a copy. With several
    stages the embedding itself is shared too."""
    tied = run.model.tie_embeddings and run.parallel.pp > 1
    found = []
    for of_chunk in weights:
        shared = [w for w in of_chunk if w.name in ("word_embeddings.weight", "output_layer.weight")]
        found.append(Chunk(tuple(of_chunk), shared[0] if tied and shared else None))
    return found
