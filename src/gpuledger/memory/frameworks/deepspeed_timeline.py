"""When the buffers of DeepSpeed's ZeRO stages 1 and 2 come and go in a micro-batch. [D3]-[D5]

Ref: deepspeed/runtime/zero/stage_1_and_2.py (setup_buckets, process_gradients, reduce_ipg_grads,
average_tensor, copy_grads_in_partition, independent_gradient_partition_epilogue).
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuledger.program.model import Program
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..group_timeline import GroupTimeline
from .deepspeed_norm import largest_and_smallest, norm_in_double

if TYPE_CHECKING:
    from .deepspeed import DeepSpeed


class DeepSpeedTimeline(GroupTimeline):
    """A micro-batch under ZeRO 1 or 2.

    ipg buffers      reduce_bucket_size elements, two with overlap_comm: from the first finished gradient
                     of a backward pass to its end (stage 1: of the step's last one). [D3]
    own gradients    whole, of every parameter that touches this rank's partition. [D4]
    flattened slices a copy of a bucket's slices while they are reduced. [D5]
    """

    def __init__(self, program: Program, policy: DeepSpeed, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.policy = policy
        self.limit = policy.options.reduce_bucket_size
        self.slices = policy.slices(program.weights)
        self.elements = {p.weight: p.elements for p in policy.own_pieces(program.weights)}
        self.own = list(self.elements)
        self.buffers: list[int] = []
        self.bucket: list[Tensor] = []
        self.filled: Size = 0
        self.large: dict[Tensor, int] = {}           # gradients that do not go through the buffer
        self.own_gradients: int | None = None        # of this micro-batch
        self.accumulated: list[int] = []             # of the step, with what pads the last partition

    def store(self, parameter: Tensor, number: int) -> None:
        """Stage 2, or overlapping: into a bucket at once; stage 1 waits for the end of backward."""
        if not self.buffers:
            self.make_buffers()
        reduces = self.policy.stage == 2 or (self.policy.overlaps and self.last_micro_batch)
        earlier = self.grads.pop(parameter, None)
        if earlier is not None:                      # accumulated in place
            self.memory.drop(number)
            number = earlier
        self.memory.categories[number] = "gradients"
        if reduces:
            self.fill(parameter, number)
        else:
            self.grads[parameter] = number

    def make_buffers(self) -> None:
        self.memory.equation = "D3"
        buffer = Tensor("ipg buffer", (self.limit,), self.program.weights[0].dtype)
        for _ in range(2 if self.policy.overlaps else 1):
            self.buffers.append(self.memory.allocate(buffer, "buffers"))

    def fill(self, parameter: Tensor, number: int) -> None:
        """Copy the gradient to the buffer; reduce before one that would not fit."""
        if self.filled + parameter.numel > self.limit:
            self.reduce()
        if parameter.numel > self.limit:
            if self.policy.offloads_optimizer:       # what goes to the host must be nobody else's
                copy = self.memory.allocate(self.memory.tensors[number], "gradients")
                self.memory.drop(number)
                number = copy
            self.large[parameter] = number
        else:
            self.memory.drop(number)
        self.bucket.append(parameter)
        self.filled = self.filled + parameter.numel

    def reduce(self) -> None:
        """Slices by partition are flattened where there are several, up to the bucket's size. [D5]"""
        memory = self.memory
        merged: list[tuple[int, Size]] = []
        for parameter in self.bucket:
            for rank, elements in self.slices[parameter]:
                if merged and merged[-1][0] == rank:
                    merged[-1] = (rank, merged[-1][1] + elements)
                else:
                    merged.append((rank, elements))
        memory.equation = "D5"
        together: list[Size] = []
        for place, (_, elements) in enumerate(merged):
            together.append(elements)
            if sum(together) > self.limit or place == len(merged) - 1:
                if len(together) > 1:
                    flat = Tensor("flattened slices", (sum(together),), self.bucket[0].dtype)
                    memory.drop(memory.allocate(flat, "buffers"))
                together = []
        self.keep_own()
        self.bucket, self.filled = [], 0

    def keep_own(self) -> None:
        """Gradients of this partition leave the buffer for good; stage 2 drops the others. [D4]"""
        memory = self.memory
        for parameter in self.bucket:
            owned = parameter in self.own
            if owned and self.policy.offloads_optimizer:
                self.offload(parameter)
            elif owned and self.own_gradients is None:
                memory.equation = "D4"
                total = sum(weight.numel for weight in self.own)
                self.own_gradients = memory.allocate(
                    Tensor("gradients of the partition", (total,), parameter.dtype), "gradients")
            waits = owned and self.policy.offloads_optimizer and not self.last_micro_batch
            if parameter in self.large and not waits and (owned or self.policy.stage == 2):
                memory.drop(self.large.pop(parameter))

    def offload(self, parameter: Tensor) -> None:
        """At the last micro-batch: the norm of this partition's part, then the part in fp32, on its way
        to the host; earlier ones are added up there, through a buffer that is always there. [D13]"""
        if self.last_micro_batch:
            device = self.program.tape.device
            elements = self.elements[parameter]
            self.memory.equation = "D13"
            self.memory.play(norm_in_double(elements, device), "buffers")
            self.memory.play(largest_and_smallest(parameter, device), "buffers")
            self.memory.drop(self.memory.allocate(
                Tensor("fp32 gradient", (elements,), "float32"), "buffers"))

    def leave(self) -> None:
        """The epilogue, after backward."""
        super().leave()
        if self.policy.stage == 1 and not self.last_micro_batch:
            return
        for parameter in self.program.weights:
            if parameter in self.grads:
                self.fill(parameter, self.grads.pop(parameter))
        if self.bucket:
            self.reduce()
        self.close_micro_batch()

    def close_micro_batch(self) -> None:
        """Add to what earlier micro-batches left; pad the last partition; let the buffers go."""
        memory = self.memory
        if self.own_gradients is not None:
            if self.accumulated:
                memory.drop(self.own_gradients)
            else:
                self.accumulated.append(self.own_gradients)
            self.own_gradients = None
        if self.last_micro_batch and not self.policy.offloads_optimizer:
            weights = self.program.weights
            missing = (self.policy.partition_elements(weights)
                       - sum(piece.elements for piece in self.policy.own_pieces(weights)))
            if missing:
                self.accumulated.append(memory.allocate(
                    Tensor("padding of the partition", (missing,), weights[0].dtype), "gradients"))
        memory.drop(*self.buffers, *self.large.values())
        self.buffers, self.large = [], {}
