"""DistributedDataParallel: gradients are reduced in buckets, beside or instead of `.grad`. [B1]-[B5]

Ref: torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpuledger.config.frameworks import DDPOptions
from gpuledger.config.training import Training
from gpuledger.errors import Problem
from gpuledger.program.model import Program
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..group_timeline import GroupTimeline
from ..policy import Kept, Policy
from ..schedule import Step
from ..timeline import Timeline

MIB = 2**20
FIRST_BUCKET_MIB, BUCKET_MIB = 1, 25
BROADCAST_BYTES = 250 * MIB
COMPRESSED = {"fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class DDP(Policy):
    """One rank of DDP; all ranks keep the same."""

    options: DDPOptions = field(default_factory=DDPOptions)

    equation = "B1"

    @property
    def walks_layers_once(self) -> bool:
        """A compressed bucket spans layers as its size has it."""
        return self.options.compression == "none"

    @property
    def limits(self) -> tuple[int, ...]:
        """Bytes at which the first and each later bucket closes."""
        cap = self.options.bucket_cap_mb
        return (FIRST_BUCKET_MIB * MIB, BUCKET_MIB * MIB) if cap is None else (cap * MIB,)

    @property
    def rebuilds(self) -> bool:
        """From the second step on buckets follow the order in which gradients are ready."""
        return self.options.static_graph or not self.options.find_unused_parameters

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> DDPTimeline:
        return DDPTimeline(program, self, workspaces)

    def kept(self, weights: Sequence[Tensor], training: Training) -> list[Kept]:
        """Buckets of all gradients, as if they were ready in reverse order [B1]; used flags. [B4]"""
        order = weights[::-1] if self.rebuilds else weights
        buckets = tuple(Tensor("bucket", (sum(w.numel for w in bucket),), bucket[0].dtype)
                        for bucket in assign(order, self.limits))
        kept = [Kept("buffers", "gradient buckets", buckets, "B1", f"{len(buckets)} buckets")]
        if self.options.find_unused_parameters or self.options.static_graph:
            used = Tensor("used parameters", (len(weights),), "int32")
            kept.append(Kept("buffers", "flags of used parameters", (used,), "B4", "int32"))
        return kept


def assign(weights: Sequence[Tensor], limits: Sequence[int]) -> list[list[Tensor]]:
    """A bucket closes when its bytes reach the limit; the last limit repeats. [B1]

    Ref: reducer.cpp compute_bucket_assignment_by_size.
    """
    buckets: list[list[Tensor]] = [[]]
    filled: Size = 0
    for weight in weights:
        buckets[-1].append(weight)
        filled = filled + weight.nbytes
        if filled >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
            filled = 0
    return [bucket for bucket in buckets if bucket]


class DDPTimeline(GroupTimeline):
    """A micro-batch under DDP; the buckets themselves live between steps."""

    def __init__(self, program: Program, policy: DDP, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.options = policy.options
        self.policy = policy
        self.unfinished: list[set[Tensor]] = []          # parameters that each bucket waits for
        self.buckets: list[list[Tensor]] = []
        if self.options.compression != "none":
            self.buckets = (assign(ready_order(program), policy.limits) if policy.rebuilds
                            else assign(program.weights, policy.limits)[::-1])
        self.clones_outputs = self.options.find_unused_parameters and not self.options.static_graph
        self.last_step = next((s for s in reversed(self.steps) if s.group is not None), None)

    def micro_batch(self) -> None:
        self.unfinished = [set(bucket) for bucket in self.buckets]
        super().micro_batch()

    def before_forward(self) -> None:
        """The module's buffers come from rank 0 before each forward: those of a dtype as one. [B5]

        Two such copies may be in flight. Ref: torch/csrc/distributed/c10d/comm.cpp.
        """
        kinds: dict[str, list[Tensor]] = {}
        for table in self.program.tape.tables:
            kinds.setdefault(table.dtype, []).append(table)
        flat = []
        for tables in kinds.values():
            for bucket in assign(tables, (BROADCAST_BYTES,)):
                if len(bucket) > 1:
                    size = sum(table.numel for table in bucket)
                    flat.append(self.memory.allocate(
                        Tensor("broadcast buffers", (size,), bucket[0].dtype), "buffers"))
        self.memory.drop(*flat)

    def forward(self, step: Step, *, saving: bool) -> None:
        """DDP's own forward ends after the module's, and before the caller's autocast."""
        if step is not self.last_step or not self.clones_outputs:
            super().forward(step, saving=saving)
            return
        self.run(step.op, saving=saving)
        cached = set(self.program.root.locals)
        self.release(tensor for tensor in step.releases if tensor not in cached)
        self.clone_outputs()
        self.release(tensor for tensor in step.releases if tensor in cached)

    def clone_outputs(self) -> None:
        """Looking for unused parameters, DDP returns clones of the module's outputs. [B4]"""
        memory = self.memory
        outputs = [t for t in (self.program.loss, self.program.logits) if t is not None]
        clones = [memory.allocate(output.like(f"clone of {output.name}"), "activations")
                  for output in outputs]
        for output, clone in zip(outputs, clones, strict=True):
            memory.drop_tensor(output)
            memory.current[output.storage] = clone

    def store(self, parameter: Tensor, number: int) -> None:
        """`.grad`, or with gradient_as_bucket_view a copy in the bucket and nothing else. [B2]"""
        copies = self.compressed_buckets(parameter)
        if self.options.gradient_as_bucket_view:
            self.memory.drop(number)
        else:
            super().store(parameter, number)
        self.memory.drop(*copies)

    def compressed_buckets(self, parameter: Tensor) -> list[int]:
        """16-bit copies of the buckets that waited for this gradient alone. [B3]"""
        for waiting in self.unfinished:
            waiting.discard(parameter)
        copies = []
        while self.unfinished and not self.unfinished[0]:
            self.unfinished.pop(0)
            bucket = self.buckets[len(self.buckets) - len(self.unfinished) - 1]
            dtype = COMPRESSED[self.options.compression]
            if bucket[0].dtype != dtype:
                copy = Tensor("compressed bucket", (sum(w.numel for w in bucket),), dtype)
                copies.append(self.memory.allocate(copy, "buffers"))
        return copies

    def earlier_gradient(self, weight: Tensor) -> Tensor:
        shape = (0,) if self.options.gradient_as_bucket_view else weight.shape
        return Tensor(f"d({weight.name})", shape, weight.dtype, "gradient")


class ReadyOrder(Timeline):
    """The order in which a backward pass finishes gradients."""

    def __init__(self, program: Program):
        super().__init__(program)
        self.order: list[Tensor] = []

    def store(self, parameter: Tensor, number: int) -> None:
        self.order.append(parameter)
        super().store(parameter, number)


def ready_order(program: Program) -> list[Tensor]:
    """Parameters in the order in which their gradients are ready."""
    timeline = ReadyOrder(program)
    timeline.micro_batch()
    return timeline.order


def unmodelled_ddp(training: Training, options: DDPOptions) -> Iterator[Problem]:
    """Adafactor's sums depend on how a gradient lies in memory, and a bucket lays it out anew."""
    if training.optimizer == "adafactor" and options.gradient_as_bucket_view:
        yield Problem("adafactor with ddp.gradient_as_bucket_view is not modelled",
                      "leave gradient_as_bucket_view out")
