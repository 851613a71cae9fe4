"""When FSDP2's buffers come and go in a micro-batch: the hooks before and after each group.

Parameter groups are the blocks and the root (embedding, final norm, head). Ref:
torch/distributed/fsdp/_fully_shard/{_fsdp_state,_fsdp_param_group}.py.
"""
from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuledger.program.model import Program
from gpuledger.program.tensor import Tensor

from ..schedule import Step
from .fsdp2_buffers import FSDP2Buffers, ParameterGroup

if TYPE_CHECKING:
    from .fsdp2 import FSDP2


class FSDP2Timeline(FSDP2Buffers):
    """A micro-batch on one rank of FSDP2."""

    def __init__(self, program: Program, policy: FSDP2, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, policy, workspaces)
        self.root_entered = False
        self.arguments: list[Tensor] = []                # of a block whose post-forward is to come
        self.ends = {id(step) for step, after in pairwise(self.steps) if step.group is not after.group}

    def forward(self, step: Step, *, saving: bool) -> None:
        """A block's arguments are its caller's until its post-forward is over."""
        if id(step) not in self.ends or step.group is None:
            super().forward(step, saving=saving)
            return
        held = set(step.group.arguments)
        self.arguments = [tensor for tensor in step.releases if tensor in held]
        if not step.op.only_recomputed:
            self.run(step.op, saving=saving)
        self.release(tensor for tensor in step.releases if tensor not in held)

    def micro_batch(self) -> None:
        self.running_backward = self.root_entered = False
        self.make_groups()
        super().micro_batch()

    @property
    def root(self) -> ParameterGroup:
        return self.groups[None]

    def change_group(self, step: Step) -> None:
        before, after = ((self.pre_backward, self.post_backward) if self.running_backward
                         else (self.pre_forward, self.post_forward))
        if step.group is not None and not self.root_entered:
            self.root_entered = True
            self.memory.layer = None
            before(self.root)
        if step.group is None and not self.running_backward:
            self.free_in_flight()                    # the root's forward is over
        if self.group is not None and self.group.layer is not None:
            self.memory.layer = self.group.layer
            after(self.groups[self.group.layer])
        self.release(self.arguments)
        self.arguments = []
        self.memory.layer = step.layer
        if step.layer is not None:
            before(self.groups[step.layer])

    def end_forward(self) -> None:
        """The root's post-forward: the last all-gather output goes; its parameters stay."""
        self.free_in_flight()
        self.release(self.arguments)
        self.arguments = []
        self.running_backward, self.root_entered, self.group = True, False, None
        super().end_forward()

    def end_backward(self) -> None:
        """The final callback: the first block is done, the root is reduced last."""
        memory = self.memory
        memory.layer = None
        self.post_backward(self.root)
        for group in self.groups.values():
            if group.reduced is not None:
                memory.drop(group.reduced)
                group.reduced = None
        memory.drop(*self.reduce_inputs)
        self.reduce_inputs = []
