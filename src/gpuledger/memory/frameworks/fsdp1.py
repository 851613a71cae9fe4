"""FSDP1 (`FullyShardedDataParallel` around every block and the whole model): what a rank keeps. [Y1] [Y2]

Stage 3 is FULL_SHARD, 2 is SHARD_GRAD_OP, 0 is NO_SHARD; with `replicate` copies HYBRID_SHARD and
_HYBRID_SHARD_ZERO2. On one rank PyTorch itself falls back to NO_SHARD.
Ref: torch/distributed/fsdp/_flat_param.py, fully_sharded_data_parallel.py, PyTorch 2.14.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpuledger.config.frameworks import FSDP1Options
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training
from gpuledger.errors import Problem
from gpuledger.program.device import Device
from gpuledger.program.model import Program
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.reductions import reduce_all
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..gradients import clip, coefficient, scalar
from ..policy import Counted, Kept, Policy, Share
from ..step import StepRunner
from ..update_rules import Moves
from .flat_parameters import Layout, groups_of
from .fsdp1_timeline import FSDP1Runner, FSDP1Timeline


@dataclass(frozen=True)
class FSDP1(Policy):
    """One rank of `ranks` that share the parameters; the first has no padding."""

    ranks: int
    stage: int = 3
    options: FSDP1Options = field(default_factory=FSDP1Options)
    rank: int = 0
    device: Device = field(default_factory=Device)

    equation = "Y1"

    @property
    def shards(self) -> bool:
        """Parameters are divided; else every rank has them whole."""
        return self.ranks > 1 and self.stage > 0

    @property
    def ways(self) -> int:
        return self.ranks if self.shards else 1

    @property
    def divides_matrices(self) -> bool:
        return True

    @property
    def neighbours(self) -> int:
        return 2

    def computed(self, training: Training) -> Training:
        """With a param_dtype the model computes in it as if it were the weights' own."""
        if self.options.param_dtype is None:
            return training
        return training.model_copy(update={"precision": "bf16"})

    def stored_dtype(self, weight: Tensor) -> str:
        return "float32" if self.options.param_dtype else weight.dtype

    def reduce_dtype(self, weight: Tensor) -> str:
        return self.options.reduce_dtype or weight.dtype

    def layout(self, weight: Tensor) -> Layout:
        return Layout(self.ranks, self.ways, weight.dtype, self.options.use_orig_params)

    def shard(self, weights: Sequence[Tensor]) -> Tensor:
        """A flat parameter as this rank stores it."""
        elements = self.layout(weights[0]).shard(weights)
        return Tensor("flat parameter", (elements,), self.stored_dtype(weights[0]), "parameter")

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> FSDP1Timeline:
        return FSDP1Timeline(program, self, workspaces)

    def runner(self, program: Program, training: Training, num_microbatches: int,
               workspaces: tuple[Tensor, ...] = ()) -> StepRunner:
        policy = replace(self, device=program.tape.device)
        return FSDP1Runner(program, training, num_microbatches, workspaces, policy)

    def parameters(self, weights: Counted) -> list[Share]:
        """One flat shard for each group."""
        over = f" / {self.ranks} ranks" if self.shards else ""
        shares = []
        for group, count in self.counted_groups(weights):
            shard, elements = self.shard(group), sum(weight.numel for weight in group)
            shares.append(Share(shard, count, elements, self.ways * shard.numel - elements, over))
        return shares

    def counted_groups(self, weights: Counted) -> list[tuple[list[Tensor], int]]:
        """Weights of a block share its count."""
        counts = {id(weight): count for weight, count in weights}
        groups = groups_of([weight for weight, _ in weights])
        return [(group, counts[id(group[0])]) for group in groups if group]

    def kept(self, weights: Sequence[Tensor], training: Training) -> list[Kept]:
        """What clip_grad_norm_ keeps for ranks without gradients."""
        if not training.gradient_clipping:
            return []
        return [Kept("buffers", "zero of clip_grad_norm_", (scalar("zero"),), "Y6", "float32")]

    def updated(self, weights: Counted) -> list[Share]:
        """The flat shards; with use_orig_params, in the order of the model, the parts of its own
        parameters that lie in them."""
        if not self.options.use_orig_params:
            return self.parameters(weights)
        over = f" / {self.ranks} ranks" if self.shards else ""
        parts: dict[int, Size] = {}
        for group, _ in self.counted_groups(weights):
            layout = self.layout(group[0])
            parts |= {id(weight): elements for weight, elements in layout.owned(group, self.own_rank)}
        return [Share(self.own_part(weight, parts[id(weight)]), count, weight.numel, 0, over)
                for weight, count in weights if id(weight) in parts]

    @property
    def own_rank(self) -> int:
        return self.rank if self.shards else 0

    def own_part(self, weight: Tensor, elements: Size) -> Tensor:
        """One-dimensional where it was divided."""
        shape = (elements,) if self.shards else weight.shape
        return Tensor(weight.name, shape, self.stored_dtype(weight), weight.role)

    def clip(self, gradients: Sequence[Tensor]) -> Moves:
        """FullyShardedDataParallel.clip_grad_norm_: norms of shards, reduced. [Y6]"""
        counted = [(gradient, 1) for gradient in gradients]
        if not self.shards:
            return clip([share.local for share in self.updated(counted)])
        return self.clip_shards([share.local for group in groups_of(gradients) if group
                                 for share in self.updated([(gradient, 1) for gradient in group])])

    def clip_shards(self, shards: Sequence[Tensor]) -> Moves:
        norms = [scalar("norm") for _ in shards]
        for shard, norm in zip(shards, norms, strict=True):
            partial, semaphores = reduce_all(shard.numel, self.device)
            yield from (+norm, +partial, +semaphores, -semaphores, -partial)
        stack = Tensor("stack of norms", (len(norms),), "float32", "scratch")
        own, squared, total = scalar("own norm"), scalar("own norm^2"), scalar("total norm")
        yield from (+stack, *(-norm for norm in norms), +own, -stack, +squared, +total, -squared)
        *moves, clamped, free_factor, free_clamped, free_total = coefficient(total)
        yield from (*moves, clamped)
        narrow = [scalar("in the gradient's dtype", s.dtype) for s in shards if s.dtype != total.dtype]
        for coefficient_of_shard in narrow:
            yield from (+coefficient_of_shard, -coefficient_of_shard)
        yield from (+result for result in narrow[:1])
        yield from (free_factor, free_clamped, free_total, -own)
        yield from (-result for result in narrow[:1])


def fsdp1_of(parallel: Parallelism, rank: int | None) -> FSDP1:
    """The policy of one rank of the group that shares parameters."""
    ranks = parallel.dp // parallel.fsdp1.replicate
    return FSDP1(ranks, parallel.zero_stage, parallel.fsdp1, (rank or 0) % ranks)


def unmodelled_fsdp1(training: Training, parallel: Parallelism) -> Iterator[Problem]:
    """Combinations that have no account, or that FSDP1 does not do."""
    options = parallel.fsdp1
    if training.optimizer not in ("adam", "adamw", "sgd", "lion"):
        yield Problem(f"optimizer {training.optimizer} on FSDP1's flat parameters is not modelled",
                      "use adamw, adam, sgd or lion")
    precision = PRECISIONS[training.precision]
    if precision.loss_scaling or precision.master_dtype:
        yield Problem(f"precision {training.precision} in FSDP1 is not modelled",
                      "use precision: bf16-mixed with fsdp1.param_dtype: bfloat16")
    elif precision.autocast and options.param_dtype is None:
        yield Problem("autocast over FSDP1's views is not modelled",
                      "set fsdp1.param_dtype: bfloat16, which casts instead of autocast")
    if options.param_dtype and training.precision != "bf16-mixed":
        yield Problem(f"fsdp1.param_dtype casts fp32 weights, but precision is {training.precision}",
                      "set precision: bf16-mixed")
    if parallel.zero_stage == 0 and options.replicate > 1:
        yield Problem("fsdp1.replicate copies a sharded model, but zero_stage 0 shards nothing",
                      "leave replicate out")
