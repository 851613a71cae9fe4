"""When the buffers of DeepSpeed's ZeRO stage 3 come and go in a micro-batch. [D7]-[D10]

Ref: deepspeed/runtime/zero/stage3.py, partition_parameters.py, deepspeed/runtime/comm/
coalesced_collectives.py, DeepSpeed 0.19.8.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpuledger.program.model import Program
from gpuledger.program.program import Op
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from .deepspeed_norm import norm_in_double
from .modules import Chain, Module, ModuleTimeline, module_chains
from .stage3_coordinator import Coordinator, Nowhere

if TYPE_CHECKING:
    from .stage3 import Stage3


class Collective:
    """One all-gather: its output stays until the last of its parameters was waited for."""

    def __init__(self, weights: Sequence[Tensor], output: int):
        self.weights, self.output = weights, output
        self.waiting = set(weights)
        self.copied = False


class Visits(ModuleTimeline):
    """The order in which a micro-batch's modules begin, forward and backward."""

    def __init__(self, program: Program, chains: dict[Op, Chain]):
        super().__init__(program, chains)
        self.order: list[tuple[str, Module]] = []

    def pre_forward(self, module: Module) -> None:
        self.order.append(("fetch forward", module))

    def post_forward(self, module: Module) -> None:
        self.order.append(("release forward", module))

    def pre_backward(self, module: Module) -> None:
        self.order.append(("fetch backward", module))

    def post_backward(self, module: Module) -> None:
        self.order.append(("release backward", module))


class Stage3Timeline(ModuleTimeline):
    """A micro-batch under ZeRO 3.

    gathered parameters  one buffer of N parts; several parameters come in one buffer, and a copy of each
                         beside it. [D8]
    reduced bucket       gradients are copied to the ipg buffer, and from there to one of N parts of each
                         for the reduce-scatter. [D10]
    """

    def __init__(self, program: Program, policy: Stage3, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, module_chains(program), workspaces)
        self.policy = policy
        self.limit = policy.options.reduce_bucket_size
        recorded = Visits(program, self.chains)
        recorded.micro_batch()
        visits = [module for kind, module in recorded.order if kind.startswith("fetch")]
        self.recorded = recorded.order
        self.coordinator = Coordinator(visits, program.weights, policy.options)
        self.data: dict[Tensor, int] = {}                # storages of gathered parameters
        self.collectives: dict[Tensor, Collective] = {}
        self.bucket: list[Tensor] = []
        self.filled: Size = 0
        self.large: dict[Tensor, int] = {}               # gradients that the ipg buffer cannot take
        self.first_micro_batch = True                    # of its step

    def rehearse(self, *, persistent: bool) -> None:
        """The first micro-batch that knows the order decides what ends where, for good.

        persistent: the persistent parameters were gathered before it, by an update.
        """
        coordinator = self.coordinator
        if persistent:
            coordinator.gather_persistent()
        self.replay_order()
        coordinator.free_all()
        coordinator.storage = self

    def replay_order(self) -> None:
        coordinator = self.coordinator
        coordinator.storage = Nowhere()
        for kind, module in self.recorded:
            action = coordinator.fetch if kind.startswith("fetch") else coordinator.release
            action(module, forward=kind.endswith("forward"))
        coordinator.end_backward()

    # ---- parameters
    def micro_batch(self) -> None:
        self.coordinator.begin()
        super().micro_batch()

    def pre_forward(self, module: Module) -> None:
        self.coordinator.fetch(module, forward=True)

    def post_forward(self, module: Module) -> None:
        self.coordinator.release(module, forward=True)

    def pre_backward(self, module: Module) -> None:
        self.coordinator.fetch(module, forward=False)

    def post_backward(self, module: Module) -> None:
        self.coordinator.release(module, forward=False)

    def gathered(self, weights: Sequence[Tensor]) -> Tensor:
        """N parts of each."""
        ranks = self.policy.ranks
        elements = sum(ranks * self.policy.part(weight) for weight in weights)
        return Tensor("gathered parameters", (elements,), weights[0].dtype)

    def gather(self, weights: Sequence[Tensor]) -> None:
        """One parameter's buffer is the parameter; several are copied out of theirs."""
        self.memory.equation = "D8"
        if self.policy.ranks == 1:
            if self.policy.offloads_parameters:
                self.data.update(zip(weights, self.from_host(weights), strict=True))
            return
        output = self.memory.allocate(self.gathered(weights), "buffers")
        if self.policy.offloads_parameters:
            self.memory.drop(*self.from_host(weights))
        if len(weights) == 1:
            self.data[weights[0]] = output
            return
        collective = Collective(weights, output)
        self.collectives.update(dict.fromkeys(weights, collective))

    def from_host(self, weights: Sequence[Tensor]) -> list[int]:
        """This rank's parts, copied to the GPU. [D13]"""
        return [self.memory.allocate(
            Tensor("part from the host", (self.policy.part(weight),), weight.dtype), "buffers")
            for weight in weights]

    def wait(self, weight: Tensor) -> None:
        collective = self.collectives.pop(weight, None)
        if collective is None:
            return
        if not collective.copied:
            collective.copied = True
            self.memory.equation = "D8"
            for other in collective.weights:
                copy = Tensor(f"copy of {other.name}", other.shape, other.dtype)
                self.data[other] = self.memory.allocate(copy, "buffers")
        collective.waiting.discard(weight)
        if not collective.waiting:
            self.memory.drop(collective.output)

    def free(self, weight: Tensor) -> None:
        number = self.data.pop(weight, None)
        if number is not None:
            self.memory.drop(number)

    def save(self, op: Op) -> None:
        """A checkpoint keeps what was gathered, where a node keeps the parameter itself. [D12]

        Ref: torch/utils/checkpoint.py (_recomputation_hook detaches what is saved).
        """
        super().save(op)
        if self.in_backward:
            self.saved[op] += [self.memory.hold(self.data[t]) for t in op.reads if t in self.data]

    def gather_persistent(self) -> None:
        """Each by itself, after the update. [D9]"""
        memory = self.memory
        memory.equation = "D9"
        weights = self.coordinator.in_order(self.coordinator.persistent)
        offloaded = self.policy.offloads_parameters
        parts = self.from_host(weights) if offloaded and len(weights) > 1 else []
        if self.policy.ranks == 1 and len(weights) > 1:
            self.data.update(zip(weights, parts, strict=False))
        else:
            for weight in weights:
                self.data[weight] = memory.allocate(
                    self.gathered([weight]).like("persistent parameter"), "buffers")
            memory.drop(*parts, *(self.from_host(weights) if offloaded and len(weights) == 1 else ()))
        self.coordinator.gather_persistent()

    # ---- gradients
    def store(self, parameter: Tensor, number: int) -> None:
        """Into the ipg buffer; what would not fit any more is reduced before."""
        self.memory.categories[number] = "gradients"
        if self.bucket and self.filled + parameter.numel > self.limit:
            self.reduce()
        if self.filled + parameter.numel <= self.limit:
            self.memory.drop(number)
        else:
            self.large[parameter] = number
        self.bucket.append(parameter)
        self.filled = self.filled + parameter.numel

    def reduce(self) -> None:
        """Parts of each gradient, rank by rank and padded, in one tensor. [D10]

        A single gradient that divides is reduced where it lies.
        """
        memory, ranks, dtype = self.memory, self.policy.ranks, self.bucket[0].dtype
        weights = self.coordinator.in_order(self.bucket)
        memory.equation = "D10"
        numbers = []
        if len(weights) > 1 or weights[0].numel % ranks:
            numbers = [memory.allocate(Tensor("padding", (missing,), dtype), "buffers")
                       for rank in range(ranks) for missing in self.paddings(weights, rank)]
            elements = sum(ranks * self.policy.part(weight) for weight in weights)
            flat = memory.allocate(Tensor("reduce-scatter input", (elements,), dtype), "buffers")
            memory.drop(*numbers)
            numbers = [flat]
        else:
            numbers = [self.large.pop(weight) for weight in weights if weight in self.large]
        if self.policy.offloads_optimizer:
            self.offload(weights)
        memory.drop(*numbers, *(self.large.pop(weight) for weight in weights if weight in self.large))
        self.bucket, self.filled = [], 0

    def offload(self, weights: Sequence[Tensor]) -> None:
        """This rank's gradients are added up in the host's memory, by a copy on the GPU; at the last
        micro-batch their norms are taken, and what goes to the host is fp32. [D13]

        Ref: partition_grads, _offload_grad_partition_at_boundary.
        """
        memory = self.memory
        held: list[int] = []
        memory.equation = "D13"
        for weight in weights:
            elements = self.policy.owned(weight)
            if elements <= 0:
                memory.drop(*([self.large.pop(weight)] if weight in self.large else ()))
                continue
            if self.first_micro_batch:
                memory.drop(*held)
                held = []
            copy = Tensor("gradient back from the host", (elements,), weight.dtype)
            number = memory.allocate(copy, "buffers")
            memory.drop(*held)
            held = [number]
            if self.last_micro_batch:
                memory.play(norm_in_double(elements, self.program.tape.device), "buffers")
                memory.drop(memory.allocate(Tensor("fp32 gradient", (elements,), "float32"), "buffers"))
            if weight in self.large:
                memory.drop(self.large.pop(weight))
        memory.drop(*held)

    def paddings(self, weights: Sequence[Tensor], rank: int) -> list[Size]:
        """Elements by which this rank's part of each gradient is short of a whole part."""
        missing = []
        for weight in weights:
            part = self.policy.part(weight)
            if (rank + 1) * part > weight.numel:
                missing.append(part - max(0, weight.numel - rank * part))
        return missing

    def leave(self) -> None:
        """After backward: the rest of the bucket, and modules whose backward had no end."""
        super().leave()
        if self.bucket:
            self.reduce()
        self.coordinator.end_backward()
        self.first_micro_batch = False
