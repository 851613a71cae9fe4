"""DeepSpeed's ZeRO stage 3: every parameter in N equal parts, gathered module by module. [D7]-[D11]

Ref: deepspeed/runtime/zero/stage3.py, DeepSpeed 0.19.8.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from gpuledger.config.frameworks import DeepSpeedOptions
from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.model import Program, Stage
from gpuledger.program.sizes import Size, ceil_div
from gpuledger.program.tensor import Tensor

from ..optimizer_states import optimizer_states
from ..optimizer_step import OptimizerStep
from ..policy import PAGEABLE, PINNED, Counted, Kept, Share, listed
from ..step import StepRunner
from .deepspeed_norm import norm_in_double
from .deepspeed_policy import DeepSpeedPolicy
from .stage3_linear import with_own_linears
from .stage3_timeline import Stage3Timeline


@dataclass(frozen=True)
class Stage3(DeepSpeedPolicy):
    """One rank of `ranks`; all keep the same."""

    ranks: int
    options: DeepSpeedOptions = field(default_factory=DeepSpeedOptions)
    rank: int = 0

    equation = "D7"

    @property
    def offloads_parameters(self) -> bool:
        """The parts of parameters are there too. [D13]"""
        return self.options.offload_param.device == "cpu"

    def build(
        self, run: Run, device: Device, part: Stage, num_layers: int | None = None
    ) -> Program:
        """The program with DeepSpeed's linear function."""
        return with_own_linears(super().build(run, device, part, num_layers))

    def part(self, weight: Tensor) -> Size:
        """Elements of a parameter that each rank stores. [D7]"""
        return ceil_div(weight.numel, self.ranks)

    def owned(self, weight: Tensor) -> Size:
        """Elements of this rank's part that are the parameter's, not padding."""
        return min(self.part(weight), weight.numel - self.rank * self.part(weight))

    def fingerprint(self, weights: Sequence[Tensor]) -> object:
        return [max(0, self.owned(weight)) for weight in weights] if self.offloads_optimizer else 0

    def sub_groups(self, weights: Sequence[Tensor]) -> list[list[Tensor]]:
        """Weights whose parts the optimizer updates at a time: until sub_group_size is there.

        Ref: _create_fp16_sub_groups.
        """
        groups: list[list[Tensor]] = [[]]
        filled: Size = 0
        for weight in weights:
            if filled >= self.options.sub_group_size:
                groups.append([])
                filled = 0
            groups[-1].append(weight)
            filled = filled + self.part(weight)
        return groups

    def parts(self, weights: Sequence[Tensor]) -> Size:
        """Elements of the parts of several parameters."""
        return sum(self.part(weight) for weight in weights)

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> Stage3Timeline:
        return Stage3Timeline(program, self, workspaces)

    def runner(self, program: Program, training: Training, num_microbatches: int,
               workspaces: tuple[Tensor, ...] = ()) -> StepRunner:
        return Stage3Runner(program, training, num_microbatches, workspaces, self)

    def parameters(self, weights: Counted) -> list[Share]:
        if self.offloads_parameters:
            return []
        return [self._flat("flat parameters", listed(weights), listed(weights)[0].dtype)]

    def updated(self, weights: Counted) -> list[Share]:
        """One fp32 tensor for each sub-group, where the GPU updates it."""
        if self.offloads_optimizer:
            return []
        every = listed(weights)
        whole = self._flat("flat partition", every, "float32")
        shares = [replace(whole, local=Tensor("flat partition", (self.parts(group),), "float32"),
                          whole_elements=0, padding_elements=0) for group in self.sub_groups(every)]
        return [replace(shares[0], whole_elements=whole.whole_elements,
                        padding_elements=whole.padding_elements), *shares[1:]]

    def _flat(self, name: str, weights: Sequence[Tensor], dtype: str) -> Share:
        part = self.parts(weights)
        elements = sum(weight.numel for weight in weights)
        return Share(Tensor(name, (part,), dtype, "parameter"), 1, elements,
                     self.ranks * part - elements, f" / {self.ranks} ranks")

    def kept(self, weights: Sequence[Tensor], training: Training) -> list[Kept]:
        """Masters, gradients of the parts, and the ipg buffer, which is there from the start. [D7]"""
        masters = self.masters(weights)
        part, limit = self.parts(weights), self.options.reduce_bucket_size
        gradients = Tensor("gradient partitions", (part,), weights[0].dtype)
        buffer = Tensor("ipg buffer", (limit,), weights[0].dtype)
        buffers = Kept("buffers", "ipg buffer", (buffer,), "D3", f"reduce_bucket_size {limit:,} elements")
        if self.offloads_optimizer:
            return [buffers]
        return [
            Kept("optimizer", "fp32 master weights", masters, "D7", f"{part:,} elements of float32"),
            Kept("gradients", "gradient partitions", (gradients,), "D7", f"{part:,} elements"), buffers]

    def masters(self, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(Tensor("master", (self.parts(group),), "float32")
                     for group in self.sub_groups(weights))

    def host(self, weights: Counted, training: Training) -> list[Kept]:
        """Pinned where pin_memory asks for it; parameters always, masters and states never. [D13]"""
        every = listed(weights)
        masters, dtype = self.masters(every), every[0].dtype
        flat = Tensor("flat parts", (self.parts(every),), dtype)
        kept = []
        if self.offloads_parameters:
            kept.append(Kept("parameters", "parameters", (flat,), "D13", PINNED))
        if self.offloads_optimizer:
            pinned = self.offload_memory
            states = tuple(s for master in masters for s in optimizer_states(master, training))
            kept += [Kept("optimizer", "fp32 master weights", masters, "D13", PAGEABLE),
                     Kept("optimizer", "optimizer states", states, "D13", PAGEABLE),
                     Kept("gradients", "fp32 gradients", masters, "D13", pinned),
                     Kept("gradients", "gradient partitions", (flat,), "D13", pinned)]
        return kept


class Stage3Runner(StepRunner):
    """Steps of stage 3: norms in fp64, then sub-group by sub-group an fp32 copy of its gradients and the
    optimizer on it. [D11]"""

    def __init__(self, program: Program, training: Training, num_microbatches: int,
                 workspaces: tuple[Tensor, ...], policy: Stage3):
        super().__init__(program, training, num_microbatches, workspaces, policy)
        timeline = cast(Stage3Timeline, self.timeline)
        timeline.rehearse(persistent=num_microbatches == 1)
        device = program.tape.device
        self.optimizers = [OptimizerStep(self.memory, [flat], training, device)
                           for flat in self.optimizer.weights]

    def start_steady(self) -> None:
        """The update before has gathered the persistent parameters."""
        super().start_steady()
        cast(Stage3Timeline, self.timeline).gather_persistent()

    def update(self, *, first: bool) -> None:
        memory, timeline = self.memory, cast(Stage3Timeline, self.timeline)
        policy, weights = cast(Stage3, self.policy), self.program.weights
        timeline.coordinator.free_all()
        timeline.first_micro_batch = True
        memory.equation = "D11"
        for weight in weights if not policy.offloads_optimizer else ():
            memory.play(norm_in_double(policy.part(weight), self.program.tape.device), "optimizer")
        for optimizer, group in zip(self.optimizers, policy.sub_groups(weights), strict=False):
            (flat,) = optimizer.weights
            copies = []
            if len(group) > 1:
                copies.append(memory.allocate(
                    Tensor("flattened gradients", flat.shape, weights[0].dtype), "optimizer"))
            single = memory.allocate(Tensor("fp32 gradients", flat.shape, "float32"), "optimizer")
            memory.drop(*copies)
            optimizer.step(first=first)
            memory.drop(single)
        timeline.gather_persistent()

    def zero_grad(self) -> None:
        """The update has done it."""
