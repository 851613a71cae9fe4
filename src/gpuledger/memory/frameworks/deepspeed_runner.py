"""The update of DeepSpeed's ZeRO stages 1 and 2. [D6]

Ref: deepspeed/runtime/zero/stage_1_and_2.py (step, get_grad_norm_direct).
"""
from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gpuledger.program.tensor import Tensor

from ..step import StepRunner
from .deepspeed_norm import norm_in_double
from .deepspeed_timeline import DeepSpeedTimeline

if TYPE_CHECKING:
    from .deepspeed import DeepSpeed


class DeepSpeedRunner(StepRunner):
    """Norms in fp64, an fp32 copy of the partition's gradients, then the optimizer on the partition.

    Scalars of the overflow check and of clipping, some bytes each, are left out.
    """

    def update(self, *, first: bool) -> None:
        memory, timeline = self.memory, cast(DeepSpeedTimeline, self.timeline)
        policy, weights = cast("DeepSpeed", self.policy), self.program.weights
        memory.equation = "D6"
        pieces = policy.own_pieces(weights)
        if policy.offloads_optimizer:
            memory.drop(*timeline.accumulated)
            timeline.accumulated = []
            return
        for piece in pieces:
            memory.play(norm_in_double(piece.elements, self.program.tape.device), "optimizer")
        part, dtype = policy.partition_elements(weights), weights[0].dtype
        flat = []
        if len(pieces) != 1 or pieces[0].elements != part:
            flat.append(memory.allocate(Tensor("flattened gradients", (part,), dtype), "optimizer"))
        single = memory.allocate(Tensor("fp32 gradients", (part,), "float32"), "optimizer")
        memory.drop(*flat, *timeline.accumulated)
        timeline.accumulated = []
        self.optimizer.step(first=first)
        memory.drop(single)

    def zero_grad(self) -> None:
        """The update has done it."""
