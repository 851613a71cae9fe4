"""When FSDP1's buffers come and go in a micro-batch. [Y2]-[Y5]

Ref: torch/distributed/fsdp/_runtime_utils.py, _flat_param.py, PyTorch 2.14.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from gpuledger.program.model import Program
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..group_timeline import GroupTimeline
from ..schedule import Step
from ..step import StepRunner

if TYPE_CHECKING:
    from .fsdp1 import FSDP1


class FlatGroup:
    """One flat parameter; `layer` is None for the root's."""

    def __init__(self, layer: int | None, weights: list[Tensor], policy: FSDP1):
        self.layer, self.weights = layer, weights
        layout = policy.layout(weights[0])
        self.elements, self.shard = layout.elements(weights), layout.shard(weights)
        self.paddings = [elements for weight, elements in layout.segments(weights) if weight is None]
        self.full: int | None = None                 # the gathered flat parameter
        self.low: int | None = None                  # its low-precision copy, of the shard or of all
        self.prefetched = False
        self.needs_backward = False                  # its backward is still to come
        self.grads: dict[Tensor, int] = {}           # of the parameters, until all are there
        self.kept: int | None = None                 # the reduced gradient, until zero_grad


class FSDP1Timeline(GroupTimeline):
    """A micro-batch on one rank of FSDP1.

    low-precision shard  the shard cast to param_dtype, until the gather; without sharding all of it,
                         until the forward or backward is over. [Y2]
    flat parameter       N shards: from pre- to post-forward (the root's, and in stage 2 all, to the
                         post-backward), again from pre- to post-backward; the next one beside it. [Y3]
    flat gradient        concatenated when the last of a group's gradients is there. [Y4]
    reduction            cast, padded, reduced, and cast back. [Y5]
    """

    def __init__(self, program: Program, policy: FSDP1, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.policy, self.options = policy, policy.options
        self.groups: dict[int | None, FlatGroup] = {}
        self.running_backward = self.root_entered = False
        self.late: FlatGroup | None = None           # its gradients wait for the block before
        self.cleared: list[int] = []                 # flat gradients whose views are None already

    # ---- where the pass is
    def micro_batch(self) -> None:
        self.running_backward = self.root_entered = False
        self.make_groups()
        self.memory.drop(*self.cleared)
        self.cleared = []
        super().micro_batch()

    def make_groups(self) -> None:
        if self.groups or not self.program.weights:
            return
        layers = self.program.tape.weight_layers
        for layer in (None, *dict.fromkeys(x for x in layers if x is not None)):
            pairs = zip(self.program.weights, layers, strict=True)
            self.groups[layer] = FlatGroup(layer, [w for w, at in pairs if at == layer], self.policy)

    @property
    def root(self) -> FlatGroup:
        return self.groups[None]

    def change_group(self, step: Step) -> None:
        before, after = ((self.pre_backward, self.end_block) if self.running_backward
                         else (self.pre_forward, self.post_forward))
        if step.group is not None and not self.root_entered:
            self.root_entered = True
            before(self.root)
        if self.group is not None and self.group.layer is not None:
            after(self.groups[self.group.layer])
        self.memory.layer = step.layer
        if step.layer is not None:
            before(self.groups[step.layer])

    def end_forward(self) -> None:
        self.post_forward(self.root)
        self.running_backward, self.root_entered, self.group = True, False, None
        super().end_forward()

    def end_backward(self) -> None:
        """The root's flat gradient is the last one."""
        if self.late is not None:
            self.post_backward(self.late)
            self.late = None
        self.post_backward(self.root)
        self.memory.layer = None

    # ---- parameters
    def pre_forward(self, group: FlatGroup) -> None:
        if not group.prefetched:
            self.unshard(group)
        if self.options.forward_prefetch:
            layers = list(self.groups)
            place = layers.index(group.layer) + 1
            self.prefetch(self.groups[layers[place]] if place < len(layers) else None)

    def post_forward(self, group: FlatGroup) -> None:
        """Freed in stage 3, but for the root's."""
        group.needs_backward = True
        self.reshard(group, free=self.policy.stage == 3 and group.layer is not None)

    def pre_backward(self, group: FlatGroup) -> None:
        if not group.prefetched:
            self.unshard(group)
        group.needs_backward = False
        if self.options.backward_prefetch == "pre":
            self.prefetch_backward(group)

    def prefetch_backward(self, group: FlatGroup) -> None:
        """The group whose forward ended before this one's (the root's ends last), if it is to come."""
        layers = [*(layer for layer in self.groups if layer is not None), None]
        place = layers.index(group.layer)
        if place and self.groups[layers[place - 1]].needs_backward:
            self.prefetch(self.groups[layers[place - 1]])

    def prefetch(self, group: FlatGroup | None) -> None:
        if group is not None and not group.prefetched:
            self.unshard(group)
            group.prefetched = True

    def unshard(self, group: FlatGroup) -> None:
        """Cast this rank's shard, gather; where nothing is sharded the cast is all. [Y2] [Y3]"""
        memory, weight, policy = self.memory, group.weights[0], self.policy
        before, memory.layer = memory.layer, group.layer
        memory.equation = "Y2"
        casts = policy.stored_dtype(weight) != weight.dtype
        if not policy.shards:
            if casts and group.low is None:
                whole = Tensor("flat parameter in param_dtype", (group.elements,), weight.dtype)
                group.low = self.of_one_layer(whole)
        elif group.full is None:
            low = Tensor("shard in param_dtype", (group.shard,), weight.dtype)
            numbers = [self.of_one_layer(low)] if casts else []
            memory.equation = "Y3"
            whole = Tensor("gathered flat parameter", (policy.ranks * group.shard,), weight.dtype)
            group.full = (self.of_one_layer(whole) if policy.stage == 3
                          else memory.allocate(whole, "buffers"))
            memory.drop(*numbers)
        memory.layer = before

    def of_one_layer(self, tensor: Tensor) -> int:
        """Two layers have one at most, whatever the depth."""
        number = self.memory.allocate(tensor, "buffers")
        self.memory.once.add(number)
        return number

    def reshard(self, group: FlatGroup, *, free: bool) -> None:
        group.prefetched = False
        if free and group.full is not None:
            self.memory.drop(group.full)
            group.full = None
        if group.low is not None:
            self.memory.drop(group.low)
            group.low = None

    # ---- gradients
    def end_block(self, group: FlatGroup) -> None:
        """A block's backward is over: its flat gradient is formed by autograd's next node.

        Where its parameters were gathered during the forward of the block before, the node that
        concatenates is older than that block's own, and autograd runs it after them.
        """
        if not self.options.forward_prefetch:
            self.post_backward(group)
            return
        if self.late is not None:
            self.post_backward(self.late)
        self.late = group

    def store(self, parameter: Tensor, number: int) -> None:
        """A part of the flat gradient, until all parts are there."""
        layers = dict(zip(self.program.weights, self.program.tape.weight_layers, strict=True))
        self.groups[layers[parameter]].grads[parameter] = number
        self.memory.categories[number] = "gradients"

    def post_backward(self, group: FlatGroup) -> None:
        """Concatenate the gradients, free the parameters, then reduce. [Y4]"""
        memory, weight = self.memory, group.weights[0]
        memory.layer, memory.equation = group.layer, "Y4"
        numbers = [memory.allocate(Tensor("padding", (elements,), weight.dtype), "gradients")
                   for elements in group.paddings]
        flat = memory.allocate(Tensor("flat gradient", (group.elements,), weight.dtype), "gradients")
        memory.drop(*numbers, *group.grads.values())
        group.grads = {}
        added = []
        if not self.policy.shards and group.kept is not None:        # AccumulateGrad, in place
            added, flat = [flat], group.kept                         # its hooks still hold the other
        self.reshard(group, free=True)
        if self.options.backward_prefetch == "post":
            self.prefetch_backward(group)
        memory.equation = "Y5"
        self.reduce(group, flat) if self.policy.shards else self.reduce_whole(group, flat)
        memory.drop(*added)

    def reduce(self, group: FlatGroup, flat: int) -> None:
        """Cast to the reduce dtype, pad to N shards, reduce-scatter, cast back, keep or add. [Y5]"""
        memory, weight, policy = self.memory, group.weights[0], self.policy
        dtype, stored = policy.reduce_dtype(weight), policy.stored_dtype(weight)
        held = [flat]
        if dtype != weight.dtype:
            held.append(self.temporary("cast gradient", group.elements, dtype))
        if policy.ranks * group.shard != group.elements:
            held.append(self.temporary("padded gradient", policy.ranks * group.shard, dtype))
        output = memory.allocate(Tensor("sharded gradient", (group.shard,), dtype), "gradients")
        if dtype != stored:
            cast_back = Tensor("sharded gradient", (group.shard,), stored)
            number = memory.allocate(cast_back, "gradients")
            memory.drop(output)
            output = number
        self.keep(group, output)
        memory.drop(*held)

    def reduce_whole(self, group: FlatGroup, flat: int) -> None:
        """The whole gradient is all-reduced in place, after a cast and before one back."""
        memory, weight, policy = self.memory, group.weights[0], self.policy
        dtype, stored = policy.reduce_dtype(weight), policy.stored_dtype(weight)
        held: list[int] = []
        if memory.tensors[flat].dtype != dtype:
            held.append(flat)
            flat = memory.allocate(Tensor("cast gradient", (group.elements,), dtype), "gradients")
        if dtype != stored:
            number = memory.allocate(Tensor("flat gradient", (group.elements,), stored), "gradients")
            if held:
                memory.drop(flat)
            else:
                held.append(flat)
            flat = number
        group.kept = None
        self.keep(group, flat)
        memory.drop(*held)

    def temporary(self, name: str, elements: Size, dtype: str) -> int:
        return self.memory.allocate(Tensor(name, (elements,), dtype), "buffers")

    def keep(self, group: FlatGroup, number: int) -> None:
        """`.grad` of the flat parameter; later micro-batches are added to it."""
        if group.kept is None:
            group.kept = number
            self.grads[group.weights[0]] = number
        else:
            self.memory.drop(number)

    def earlier_gradients(self, *, kept: bool, only: set[Tensor] | None = None) -> None:
        """Reduced ones, of the step before or of earlier micro-batches."""
        self.make_groups()
        memory = self.memory
        for group in self.groups.values():
            if group.kept is None:
                memory.layer = group.layer
                shard = self.policy.shard(group.weights)
                self.keep(group, memory.allocate(shard.like("sharded gradient"), "gradients"))
        memory.layer = None

    def clear(self) -> None:
        """zero_grad. With use_orig_params the views are gone, and their storage goes with the next
        forward."""
        for group in self.groups.values():
            if group.kept is None:
                continue
            del self.grads[group.weights[0]]
            if self.options.use_orig_params:
                self.cleared.append(group.kept)
            else:
                self.memory.drop(group.kept)
            group.kept = None


class FSDP1Runner(StepRunner):
    """Steps of a rank; zero_grad is the timeline's."""

    def zero_grad(self) -> None:
        cast("FSDP1Timeline", self.timeline).clear()

    def start_steady(self) -> None:
        """With use_orig_params the gradients of the step before are still there."""
        super().start_steady()
        timeline = cast("FSDP1Timeline", self.timeline)
        if self.training.set_to_none and timeline.options.use_orig_params:
            timeline.earlier_gradients(kept=True)
            timeline.clear()
