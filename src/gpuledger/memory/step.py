"""A whole optimizer step as a stream of allocations and frees, and the constants that it reads."""
from __future__ import annotations

from typing import Protocol

from gpuledger.config.fused_kernels import steps_with_own_adamw
from gpuledger.config.training import Training
from gpuledger.program.model import Program
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.tensor import Tensor

from .gradients import LossScaler
from .group_timeline import GroupTimeline
from .ledger import Memory
from .optimizer_step import OptimizerStep
from .policy import Policy
from .repeated import Repetitions
from .zero import UNDIVIDED


class RankRunner(Protocol):
    """Runs whole steps of one rank: its ledger, and a timeline with the marks and positions of all of it."""

    @property
    def memory(self) -> Memory: ...

    @property
    def timeline(self) -> GroupTimeline: ...

    repetitions: Repetitions | None

    def step(self, *, first: bool = False) -> None:
        """One optimizer step."""


class StepRunner:
    """Runs steps of one program on one ledger, on the rank that `policy` describes."""

    def __init__(self, program: Program, training: Training, num_microbatches: int,
                 workspaces: tuple[Tensor, ...] = (), policy: Policy = UNDIVIDED):
        self.program, self.training, self.num_microbatches = program, training, num_microbatches
        self.policy = policy
        self.repetitions: Repetitions | None = None      # set: what repeats is walked once
        self.timeline: GroupTimeline = policy.timeline(program, workspaces)
        self.memory: Memory = self.timeline.memory
        precision = PRECISIONS[training.precision]
        updated = [share.local for share in policy.updated([(w, 1) for w in program.weights])]
        self.gradients = [policy.gradient(w) for w in program.weights]
        self.masters = ([w.like(w.name, precision.master_dtype) for w in updated]
                        if precision.master_dtype else None)
        self.optimizer = OptimizerStep(self.memory, self.masters or updated, training,
                                       program.tape.device)
        fused = (training.optimizer_implementation == "fused" and policy.scales_in_step
                 and not steps_with_own_adamw(training))      # ours leaves unscaling to the scaler
        self.scaler = (LossScaler(fused, policy.axes_of_found_inf)
                       if precision.loss_scaling else None)

    def step(self, *, first: bool = False) -> None:
        """Micro-batches, the update, zero_grad."""
        if first and self.scaler:
            self.timeline.scaler_state.extend(self.scaler.state())
        self.micro_batches()
        self.timeline.mark("optimizer step")
        self.update(first=first)
        self.timeline.mark("zero grad")
        if self.training.set_to_none:
            self.zero_grad()

    def start_steady(self) -> None:
        """What the step before has left, beside states: kept gradients."""
        if not self.training.set_to_none:
            self.timeline.earlier_gradients(kept=True)

    def micro_batches(self) -> None:
        """Forward and backward passes of one step."""
        timeline, left = self.timeline, self.num_microbatches - 1
        timeline.last_micro_batch = False
        if self.repetitions is None:
            for _ in range(left):
                timeline.micro_batch()
        else:
            self.repetitions.run(timeline.micro_batch, left)
        timeline.last_micro_batch = True
        timeline.micro_batch()

    def zero_grad(self) -> None:
        """`.grad` of every parameter becomes None."""
        grads = self.timeline.grads
        self.memory.drop(*(grads.pop(w) for w in self.program.weights if w in grads))

    def update(self, *, first: bool) -> None:
        """Unscale, clip and step, as the run asks."""
        if self.training.gradient_clipping:
            if self.scaler:
                self.memory.play(self.scaler.unscale(), "optimizer")
            self.memory.play(self.policy.clip(self.gradients), "optimizer")
        if self.scaler:
            self.memory.play(self.scaler.before_step(), "optimizer")
        self.optimizer_step(first=first)
        if self.scaler:
            self.memory.play(self.scaler.after_step(), "optimizer")

    def optimizer_step(self, *, first: bool) -> None:
        """With separate masters, fp32 gradients live from here to the end of the step."""
        memory = self.memory
        gradients = [memory.allocate(master.like("fp32 gradient"), "gradients")
                     for master in self.masters or ()
                     if not (isinstance(master.nbytes, int) and master.nbytes == 0)]
        self.optimizer.step(first=first)
        memory.drop(*gradients)


def batch(training: Training) -> tuple[Tensor, Tensor]:
    """Tokens and targets (b, s)."""
    shape = (training.micro_batch_size, training.seq_len)
    return Tensor("tokens", shape, "int64", "table"), Tensor("targets", shape, "int64", "table")
