"""DeepSpeed's ZeRO stages 1 and 2: flat parameters, and a flat partition of masters and states. [D1] [D2]

Ref: deepspeed/runtime/zero/stage_1_and_2.py, DeepSpeed 0.19.8.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpuledger.config.frameworks import DeepSpeedOptions
from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.errors import Problem
from gpuledger.program.model import Program
from gpuledger.program.sizes import Size, round_up
from gpuledger.program.tensor import Tensor

from ..optimizer_states import optimizer_states
from ..policy import PAGEABLE, Counted, Kept, Share, listed
from ..step import StepRunner
from .deepspeed_policy import DeepSpeedPolicy
from .deepspeed_runner import DeepSpeedRunner
from .deepspeed_timeline import DeepSpeedTimeline

ALIGNMENT = 2                        # elements: send buffers of an all-gather start at 4 bytes


@dataclass(frozen=True)
class Piece:
    """The part of a parameter that lies in a partition."""

    weight: Tensor
    elements: Size


@dataclass(frozen=True)
class DeepSpeed(DeepSpeedPolicy):
    """One rank of `ranks`; where none is given, the first one that keeps most gradients."""

    stage: int
    ranks: int
    options: DeepSpeedOptions = field(default_factory=DeepSpeedOptions)
    rank: int | None = None

    equation = "D1"

    @property
    def overlaps(self) -> bool:
        return bool(self.options.overlap_comm)

    def flat_elements(self, weights: Sequence[Tensor]) -> Size:
        """Parameters of one flat tensor, padded to whole partitions. [D1]"""
        return round_up(sum(weight.numel for weight in weights), ALIGNMENT * self.ranks)

    def partition_elements(self, weights: Sequence[Tensor]) -> Size:
        return self.flat_elements(weights) // self.ranks

    def slices(self, weights: Sequence[Tensor]) -> dict[Tensor, list[tuple[int, Size]]]:
        """(rank, elements) of the partitions over which each parameter lies."""
        part, begin = self.partition_elements(weights), 0
        slices: dict[Tensor, list[tuple[int, Size]]] = {}
        for weight in weights:
            end = begin + weight.numel
            slices[weight] = [
                (rank, min(end, (rank + 1) * part) - max(begin, rank * part))
                for rank in range(begin // part, (end - 1) // part + 1)]
            begin = end
        return slices

    def own_pieces(self, weights: Sequence[Tensor]) -> list[Piece]:
        """What lies in this rank's partition, in order."""
        slices = self.slices(weights)
        rank = self.fullest_rank(weights) if self.rank is None else self.rank
        return [Piece(weight, elements) for weight in weights
                for owner, elements in slices[weight] if owner == rank]

    def fullest_rank(self, weights: Sequence[Tensor]) -> int:
        """The first rank whose parameters, whole, have most elements. [D4]"""
        touched: list[Size] = [0] * self.ranks
        for weight, owners in self.slices(weights).items():
            for rank, _ in owners:
                touched[rank] = touched[rank] + weight.numel
        return touched.index(max(touched))

    def fingerprint(self, weights: Sequence[Tensor]) -> object:
        return [(piece.weight, piece.elements) for piece in self.own_pieces(weights)]

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> DeepSpeedTimeline:
        return DeepSpeedTimeline(program, self, workspaces)

    def runner(self, program: Program, training: Training, num_microbatches: int,
               workspaces: tuple[Tensor, ...] = ()) -> StepRunner:
        return DeepSpeedRunner(program, training, num_microbatches, workspaces, self)

    def parameters(self, weights: Counted) -> list[Share]:
        every = listed(weights)
        elements, flat = sum(weight.numel for weight in every), self.flat_elements(every)
        return [Share(Tensor("flat parameters", (flat,), every[0].dtype, "parameter"), 1, elements,
                      flat - elements)]

    def updated(self, weights: Counted) -> list[Share]:
        """One flat fp32 partition, where the GPU updates it."""
        if self.offloads_optimizer:
            return []
        every = listed(weights)
        elements, part = sum(weight.numel for weight in every), self.partition_elements(every)
        return [Share(Tensor("flat partition", (part,), "float32"), 1, elements,
                      self.ranks * part - elements, f" / {self.ranks} ranks")]

    def kept(self, weights: Sequence[Tensor], training: Training) -> list[Kept]:
        """The fp32 masters of this partition [D2]; or a buffer for gradients on their way. [D13]"""
        part = self.partition_elements(weights)
        if self.offloads_optimizer:
            largest = Tensor("buffer", (max(w.numel for w in weights),), weights[0].dtype)
            return [Kept("buffers", "buffer of the largest gradient", (largest,), "D13", "bfloat16")]
        return [Kept("optimizer", "fp32 master weights", (Tensor("master", (part,), "float32"),), "D2",
                     f"{part:,} elements of float32")]


    def host(self, weights: Counted, training: Training) -> list[Kept]:
        """Masters, their copy in bf16, gradients and states of the partition. [D13]"""
        if not self.offloads_optimizer:
            return []
        every = listed(weights)
        part, dtype = self.partition_elements(every), every[0].dtype
        pinned = self.offload_memory
        master = Tensor("master", (part,), "float32")
        copy = Tensor("copy", (part,), dtype)
        largest = Tensor("largest gradient", (max(w.numel for w in every),), dtype)
        several = training.global_batch_size > training.micro_batch_size * self.ranks
        sums = [Tensor("sum", p.weight.shape, dtype) for p in self.own_pieces(every)] if several else []
        states = tuple(optimizer_states(master, training))
        return [Kept("optimizer", "fp32 master weights", (master,), "D13", pinned),
                Kept("optimizer", "updated parameters", (copy,), "D13", pinned),
                Kept("optimizer", "optimizer states", states, "D13", PAGEABLE),
                Kept("gradients", "fp32 gradients", (master,), "D13", pinned),
                Kept("gradients", "sums over micro-batches", (*sums, largest), "D13", pinned)]


def unmodelled_deepspeed(run: Run) -> Iterator[Problem]:
    """What has no account yet."""
    training, stage, options = run.training, run.parallel.zero_stage, run.parallel.deepspeed
    if stage == 1 and options.overlap_comm and run.num_microbatches > 1:
        yield Problem("stage 1 with overlap_comm and several micro-batches is not modelled",
                      "set zero_stage: 2, or leave overlap_comm out")
    if stage == 3 and training.loss in ("chunked", "fused_linear"):
        yield Problem(f"loss {training.loss} calls the head outside of its module's hooks, which "
                      "DeepSpeed's stage 3 needs", "use loss: cross_entropy, or framework: fsdp2")
    if stage == 3 and str(training.recompute) == "per_op":
        yield Problem("recompute: per_op under DeepSpeed's stage 3 is not modelled",
                      "use recompute: full, or zero_stage: 2")
    if training.precision != "bf16-master":
        yield Problem(
            f"DeepSpeed keeps fp32 masters of bf16 weights, but precision is {training.precision}",
            "set precision: bf16-master")
    if training.optimizer not in ("adam", "adamw", "sgd", "lion"):
        yield Problem(f"optimizer {training.optimizer} in DeepSpeed is not modelled",
                      "use adamw, adam, sgd or lion")
    if not options.contiguous_gradients:
        yield Problem("contiguous_gradients: false is not modelled", "leave it out")
    if options.offload_optimizer.device == "cpu" and stage == 0:
        yield Problem("deepspeed.offload_optimizer is of stages 1 to 3, but zero_stage is 0",
                      "set zero_stage: 2, or leave offload_optimizer out")
    if options.offload_param.device == "cpu" and stage != 3:
        yield Problem(f"deepspeed.offload_param is of stage 3, but zero_stage is {stage}",
                      "set zero_stage: 3, or leave offload_param out")
