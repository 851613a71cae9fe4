"""FSDP2's buffers: how parameters are gathered and freed, how gradients are reduced and kept.

Parameter groups are the blocks and the root (embedding, final norm, head). Ref:
torch/distributed/fsdp/_fully_shard/{_fsdp_state,_fsdp_param_group,_fsdp_collectives,_fsdp_param}.py.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuledger.program.model import Program
from gpuledger.program.sizes import Size, product
from gpuledger.program.tensor import ITEMSIZE, Tensor

from ..group_timeline import GroupTimeline
from .pointer_tables import chunk_cat_table, copy_out_table

if TYPE_CHECKING:
    from .fsdp2 import FSDP2


# Side streams on which buffers are allocated (FSDPCommContext); the collectives' own allocate nothing. [W11]
COPY_IN_STREAM, REDUCE_STREAM, ALL_REDUCE_STREAM = 1, 2, 3


class ParameterGroup:
    """Weights that are gathered and reduced together; `layer` is None for the root."""

    def __init__(self, layer: int | None, weights: list[Tensor]):
        self.layer = layer
        self.weights = weights
        self.gathered: int | None = None             # all-gather output that waits for its copy-out
        self.unsharded: list[int] = []               # whole parameters, one storage each
        self.resharded: list[int] = []               # parts of them on the smaller mesh, after forward
        self.reduced: int | None = None              # reduced gradients in the reduce dtype (HSDP)


class FSDP2Buffers(GroupTimeline):
    """What one rank of FSDP2 does with a group; when, says FSDP2Timeline.

    all-gather output     N shards in one tensor: from the gather to the copy-out; in forward to the next
                          group's copy-out. [W2]
    unsharded parameters  padded, one storage each: between pre- and post-forward (the root's to its
                          post-backward), again between pre- and post-backward. [W4]
    reduce-scatter input  the group's padded gradients, until the next group's post-backward. [W5]
    sharded gradients     one storage per group, in the original dtype, until zero_grad. [W6]
    """

    def __init__(self, program: Program, policy: FSDP2, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.policy = policy
        self.options = policy.options
        self.groups: dict[int | None, ParameterGroup] = {}
        self.unsharded_grads: dict[Tensor, int] = {}     # `.grad` of unsharded parameters
        self.accumulated: dict[Tensor, int] = {}         # the same in another reduce dtype
        self.in_flight: int | None = None                # forward: the output whose copy-out came last
        self.reduce_inputs: list[int] = []
        self.running_backward = False

    def make_groups(self) -> None:
        """One for each block, and the root's."""
        layers = self.program.tape.weight_layers
        if not self.groups:
            for layer in (None, *dict.fromkeys(x for x in layers if x is not None)):
                pairs = zip(self.program.weights, layers, strict=True)
                self.groups[layer] = ParameterGroup(layer, [w for w, at in pairs if at == layer])

    # ---- parameters
    def pre_forward(self, group: ParameterGroup) -> None:
        self.memory.equation = "W2"
        self.gather(group)
        self.copy_out(group)
        if group.layer is not None:
            for ahead in range(1, self.options.forward_prefetch + 1):
                self.gather(self.groups.get(group.layer + ahead))

    def post_forward(self, group: ParameterGroup) -> None:
        """Free the parameters, or keep a part of each on the smaller mesh. [W7]"""
        if not self.policy.reshard:
            return
        memory, fewer = self.memory, self.options.reshard_to
        memory.layer = group.layer
        for weight, number in zip(group.weights, group.unsharded, strict=True):
            if fewer:
                elements = self.policy.ranks * self.shard_elements(weight) // fewer
                part = Tensor(f"resharded {weight.name}", (elements,), weight.dtype)
                group.resharded.append(memory.allocate(part, "buffers"))
            memory.drop(number)
        group.unsharded = []

    def pre_backward(self, group: ParameterGroup) -> None:
        """Gather, unless it was done ahead; then gather ahead."""
        self.memory.equation = "W2"
        self.gather(group)
        self.copy_out(group)
        if group.layer is None:
            self.gather(self.groups[max(layer for layer in self.groups if layer is not None)])
            return
        for distance in range(1, (self.options.backward_prefetch or 1) + 1):
            self.gather(self.groups.get(group.layer - distance))

    def shard_elements(self, weight: Tensor) -> Size:
        """Elements that each rank stores of a weight."""
        return self.policy.rows(weight) * product(weight.shape[1:])

    def gather(self, group: ParameterGroup | None) -> None:
        """The all-gather and its copy-in; nothing where the parameters are there or on their way."""
        if (group is None or group.gathered is not None or group.unsharded or not group.weights
                or self.policy.ranks == 1):
            return
        ranks, memory = self.policy.ranks, self.memory
        inputs = [self.shard_elements(weight) for weight in group.weights]
        dtype, ways = group.weights[0].dtype, ranks
        if group.resharded and self.options.reshard_to:
            ways = self.options.reshard_to
            inputs = [ranks * elements // ways for elements in inputs]
        with memory.on_stream(COPY_IN_STREAM):
            copied = self.copy_in(group, inputs)
            output = Tensor("all-gather output", (ways * sum(inputs),), dtype)
            group.gathered = memory.allocate(output, "buffers")
        memory.once.add(group.gathered)
        memory.drop(*copied)

    def copy_in(self, group: ParameterGroup, inputs: list[Size]) -> list[int]:
        """Shards cast to the param_dtype in one tensor [W2]; offloaded ones copied one by one. [W9]"""
        memory, dtype = self.memory, group.weights[0].dtype
        stored = self.policy.stored_dtype(group.weights[0])
        copies: list[int] = []
        if self.options.cpu_offload:
            for elements in inputs if not group.resharded else ():
                copy = memory.allocate(Tensor("shard from the host", (elements,), stored), "buffers")
                if stored != dtype:
                    cast = memory.allocate(Tensor("cast shard", (elements,), dtype), "buffers")
                    memory.drop(copy)
                    copy = cast
                copies.append(copy)
        elif stored != dtype:
            copies.append(memory.allocate(Tensor("cast shards", (sum(inputs),), dtype), "buffers"))
        memory.once.update(copies)
        return copies

    def copy_out(self, group: ParameterGroup) -> None:
        """From the all-gather output to the parameters; one rank copies its shards."""
        memory, ranks = self.memory, self.policy.ranks
        memory.equation = "W4"
        if ranks == 1:
            self.copy_shards(group)
        if group.gathered is None:
            return
        for weight in group.weights:
            group.unsharded.append(memory.allocate(self.unsharded(weight), "buffers"))
        ways = self.options.reshard_to if group.resharded and self.options.reshard_to else ranks
        rows = [ranks * self.shard_elements(w) // ways * ITEMSIZE[w.dtype] for w in group.weights]
        memory.drop(memory.allocate(copy_out_table(rows, ways, self.program.tape.device)))
        memory.drop(*group.resharded)
        group.resharded = []
        if self.running_backward:
            memory.drop(group.gathered)
        else:
            self.free_in_flight()
            self.in_flight = group.gathered
        group.gathered = None

    def unsharded(self, weight: Tensor) -> Tensor:
        """The whole parameter, padded."""
        elements = self.policy.ranks * self.shard_elements(weight)
        return Tensor(f"unsharded {weight.name}", (elements,), weight.dtype)

    def copy_shards(self, group: ParameterGroup) -> None:
        """Where one rank has all rows: its parameter, cast or from the host, and then a copy of it."""
        memory = self.memory
        held: list[int] = []
        for weight in group.weights if not group.unsharded else ():
            copies = self.copy_in(group, [self.shard_elements(weight)])
            memory.drop(*held)
            held = copies
            group.unsharded.append(memory.allocate(self.unsharded(weight), "buffers"))
        memory.drop(*held)

    def free_in_flight(self) -> None:
        if self.in_flight is not None:
            self.memory.drop(self.in_flight)
            self.in_flight = None

    # ---- gradients
    def store(self, parameter: Tensor, number: int) -> None:
        """`.grad` of the unsharded parameter; without synchronisation later ones are added to it."""
        if self.unsharded_grads.setdefault(parameter, number) != number:
            self.memory.drop(number)
        else:
            self.memory.categories[number] = "gradients"

    def post_backward(self, group: ParameterGroup) -> None:
        """Free the parameters, then reduce the group's gradients."""
        memory = self.memory
        memory.drop(*(self.unsharded_grads.pop(weight) for weight in group.weights
                      if weight in self.accumulated and weight in self.unsharded_grads))
        if self.last_micro_batch or self.options.sync_every_micro_batch:
            self.redistribute(group)
        memory.drop(*group.unsharded)
        group.unsharded = []
        memory.equation = "W5"
        if not (self.last_micro_batch or self.options.sync_every_micro_batch):
            self.keep_unsharded(group)
            return
        while len(self.reduce_inputs) >= self.options.max_reduce_scatter_inputs:
            memory.drop(self.reduce_inputs.pop(0))
        if group.weights:
            self.reduce(group)

    def redistribute(self, group: ParameterGroup) -> None:
        """Gradients that DTensor left as parts of a sum, or whole, become those of this rank's part. [W12]

        Ref: _fsdp_param.py _get_grad_inner_tensor.
        """
        tape = self.program.tape
        for weight in group.weights:
            if self.unreduced(weight) is not weight or weight in tape.partial_gradients:
                grads = self.accumulated if weight in self.accumulated else self.unsharded_grads
                dtype = self.policy.reduce_dtype(weight) if weight in self.accumulated else weight.dtype
                number = self.memory.allocate(weight.gradient().like("redistributed gradient", dtype))
                self.memory.drop(grads[weight])
                grads[weight] = number

    def unreduced(self, weight: Tensor) -> Tensor:
        """As `.grad` of the gathered parameter is: that of a vocabulary is whole, unless a tied head's
        part was added to it."""
        whole = self.program.tape.whole_gradients
        return whole[weight] if weight in whole and self.uses[weight] == 1 else weight

    def keep_unsharded(self, group: ParameterGroup) -> None:
        """Without synchronisation: gradients stay whole, in the reduce dtype. [W8]"""
        memory = self.memory
        for weight in group.weights:
            wanted = self.policy.reduce_dtype(weight)
            if weight.dtype != wanted and weight not in self.accumulated:
                cast = self.unreduced(weight).gradient().like("unsharded gradient", wanted)
                self.accumulated[weight] = memory.allocate(cast, "gradients")
                memory.drop(self.unsharded_grads.pop(weight))

    def reduce(self, group: ParameterGroup) -> None:
        """chunk_cat into the reduce-scatter input, reduce, cast to the original dtype. [W5] [W6]

        Ref: _fsdp_collectives.py foreach_reduce; among several ranks its loop variable holds
        the last gradient to the end.
        """
        memory, first = self.memory, group.weights[0]
        dtype, stored = self.policy.reduce_dtype(first), self.policy.stored_dtype(first)
        shard = [self.shard_elements(weight) for weight in group.weights]
        whole = Tensor("reduce-scatter input", (self.policy.ranks * sum(shard),), dtype)
        number = memory.allocate(whole, "buffers")
        memory.once.add(number)
        self.reduce_inputs.append(number)
        memory.drop(memory.allocate(chunk_cat_table([n * ITEMSIZE[dtype] for n in shard])))
        grads = [
            (self.accumulated if weight in self.accumulated else self.unsharded_grads).pop(weight)
            for weight in group.weights]
        held = grads[-1:] if self.policy.ranks > 1 else []
        memory.drop(*grads[:len(grads) - len(held)])
        memory.equation = "W6"
        with memory.on_stream(REDUCE_STREAM):
            output = memory.allocate(Tensor("sharded gradients", (sum(shard),), dtype), "gradients")
        if self.options.replicate > 1:
            group.reduced = memory.hold(output)
        if dtype != stored:
            with memory.on_stream(ALL_REDUCE_STREAM if self.options.replicate > 1 else REDUCE_STREAM):
                cast = memory.allocate(Tensor("sharded gradients", (sum(shard),), stored), "gradients")
            memory.drop(output)
            output = cast
        self.keep_sharded(group, output)
        memory.drop(*held)

    def keep_sharded(self, group: ParameterGroup, number: int) -> None:
        """The group's gradients share a storage; those of later micro-batches are added to it."""
        memory = self.memory
        if not self.options.cpu_offload and group.weights[0] not in self.grads:
            for weight in group.weights:
                self.grads[weight] = memory.hold(number)
        memory.drop(number)

    def earlier_gradients(self, *, kept: bool, only: set[Tensor] | None = None) -> None:
        """Sharded ones, or whole ones where nothing is reduced before the last micro-batch. [W8]"""
        self.make_groups()
        memory = self.memory
        for group in self.groups.values():
            memory.layer = group.layer
            if kept or self.options.sync_every_micro_batch:
                shard = sum(self.shard_elements(weight) for weight in group.weights)
                stored = self.policy.stored_dtype(group.weights[0])
                self.keep_sharded(group, memory.allocate(
                    Tensor("sharded gradients", (shard,), stored), "gradients"))
            else:
                for weight in group.weights:
                    wanted = self.policy.reduce_dtype(weight)
                    gradient = self.unreduced(weight).gradient().like("gradient", wanted)
                    number = memory.allocate(gradient, "gradients")
                    grads = self.unsharded_grads if wanted == weight.dtype else self.accumulated
                    grads[weight] = number
        memory.layer = None
