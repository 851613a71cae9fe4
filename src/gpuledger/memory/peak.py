"""The peak of one step in steady state: how many bytes, when, and what is live then."""
from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from gpuledger.config.run import Run
from gpuledger.program.device import Device
from gpuledger.program.model import Program, Stage
from gpuledger.program.program import Part
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from .allocator.sizes import MIN_BLOCK_BYTES
from .frameworks import policy_of
from .group_timeline import GroupTimeline
from .layers import Walk, plan_walk
from .ledger import Memory
from .states import State, constants_of, kept_states, model_states, step_constants
from .step import StepRunner
from .zero import UNDIVIDED, Division

DIFFERENT_MICRO_BATCHES = 3                 # the first, any in the middle, the last
LiveKey = tuple[str, str, str, bool]        # category, name, detail, in a layer


@dataclass(frozen=True)
class Live:
    """Tensors of one kind that are live at the peak instant.

    rounding_bytes: what 512-byte blocks add, where the tensors are not all of one size.
    """

    category: str
    name: str
    count: int
    nbytes: Size
    equation: str
    detail: str
    rounding_bytes: Size | None = None


@dataclass(frozen=True)
class Peak:
    """The highest level of requested bytes in a steady step, and everything that makes it up."""

    requested_bytes: int
    instant: str
    live: tuple[Live, ...]
    states: tuple[State, ...]

    def category_bytes(self, category: str) -> int:
        """Requested bytes of one category at the peak."""
        entries: tuple[Live | State, ...] = (*self.states, *self.live)
        return sum(entry.nbytes for entry in entries if entry.category == category)


class StepPeak:
    """Finds the peak of one rank's step; `program` is the walked part of the model.

    part: the rank's only model chunk, where it is not the whole model.
    """

    def __init__(self, run: Run, device: Device, part: Stage | None = None):
        self.run, self.policy = run, policy_of(run.parallel)
        self.training = self.policy.computed(run.training)
        self.device = device
        self.part = part or Stage(0, run.model.num_layers)
        self.walk = plan_walk(run.model, self.training, self.policy, self.part.num_layers)
        self.program = self.policy.build(run, device, self.part, self.walk.num_layers)
        self.weights = all_weights(self.program, self.walk)
        self.counted = counted_weights(self.program, self.walk)

    @cached_property
    def states(self) -> tuple[State, ...]:
        """What lives through the whole step."""
        as_computed = self.run.model_copy(update={"training": self.training})
        return (*model_states(self.counted, self.training, self.policy),
                *kept_states(self.policy.kept(self.weights, self.training)),
                *step_constants(*constants_of(as_computed), self.device))

    @property
    def states_bytes(self) -> Size:
        """Bytes of this rank that live through the whole step: a lower bound of its peak."""
        return sum(state.nbytes for state in self.states)

    def whole_states_bytes(self) -> Size:
        """Masters and optimizer states of all ranks together, without padding."""
        whole = isinstance(self.policy, Division) and not self.policy.divides(1)
        states = (self.states if whole                   # this rank's are those of all ranks
                  else model_states(self.counted, self.training, UNDIVIDED))
        return sum(state.nbytes for state in states if state.category == "optimizer")

    def find(self) -> Peak:
        """The higher of the micro-batch's peak and the optimizer's."""
        persistent = self.states_bytes                # refuses what no rank can keep
        if not self.policy.walks_layers_once:
            return self._peak_of_whole_step()
        timeline = self._walk()
        level, position = self._highest(timeline.memory)
        end = self._level_at_end(timeline.memory)
        runner, update_level, update_position = self.update_of(self.weights)
        if end + update_level > level:
            live = [*self._live(timeline.memory, len(timeline.memory.events)),
                    *live_of_update(runner.memory, update_position)]
            return Peak(persistent + end + update_level, "optimizer step", tuple(live), self.states)
        live = self._live(timeline.memory, position)
        return Peak(persistent + level, self._instant(timeline, position), tuple(live), self.states)

    def _walk(self) -> GroupTimeline:
        """The last micro-batch of a step: earlier gradients, or kept ones, are there already."""
        timeline = self.policy.timeline(self.program)
        if not self.training.set_to_none:
            timeline.earlier_gradients(kept=True)
        if self.run.num_microbatches > 1:
            timeline.earlier_gradients(kept=False)
        timeline.micro_batch()
        return timeline

    def _peak_of_whole_step(self) -> Peak:
        """Every event of a step whose first, middle and last micro-batch are walked."""
        runner = self.policy.runner(self.program, self.training,
                                    min(self.run.num_microbatches, DIFFERENT_MICRO_BATCHES))
        runner.start_steady()
        runner.step()
        level, position = self._highest(runner.memory)
        live = self._live(runner.memory, position)
        instant = self._instant(runner.timeline, position)
        return Peak(self.states_bytes + level, instant, tuple(live), self.states)

    def _highest(self, memory: Memory, begin: int = 0, end: int | None = None) -> tuple[Size, int]:
        """(level, number of events up to it) over the allocations outside the middle layers, from event
        number begin to end."""
        live = middle = best = 0
        position = 0
        copies, low, high = self.walk.copies, *self.walk.middle
        layers = memory.layers
        for i, (sign, number, nbytes) in enumerate(memory.events):
            live += sign * nbytes
            layer = layers[number]
            if layer is not None and low <= layer < high:
                if number not in memory.once:
                    middle += sign * nbytes
                continue
            if sign > 0 and i >= begin and live + copies * middle > best:
                best, position = live + copies * middle, i + 1
            if i + 1 == end:
                break
        return best, position

    def _level_at_end(self, memory: Memory) -> Size:
        return sum(memory.sizes[number] * self._stands_for(memory, number)
                   for number, holders in enumerate(memory.holders) if holders)

    def _stands_for(self, memory: Memory, number: int) -> int:
        """How many allocations of the model this one is the account of."""
        return 1 if number in memory.once else self.walk.stands_for(memory.layers[number])

    def update_of(self, weights: tuple[Tensor, ...]) -> tuple[StepRunner, Size, int]:
        """The optimizer on these weights of this rank, and the highest level of its temporaries."""
        runner = self.updated(weights)
        live = best = position = 0
        for i, (sign, _, nbytes) in enumerate(runner.memory.events):
            live += sign * nbytes
            if live > best:
                best, position = live, i + 1
        return runner, best, position

    def updated(self, weights: tuple[Tensor, ...]) -> StepRunner:
        """A runner that has done nothing but the update of these weights, briefly."""
        update_alone = replace(self.program, root=Part("update"), weights=weights)
        runner = self.policy.runner(update_alone, self.training, 1)
        runner.optimizer.brief = True
        runner.update(first=False)
        return runner

    def _live(self, memory: Memory, position: int, begin: int = 0) -> list[Live]:
        """Tensors made from event number `begin` on and live after `position` events, equal ones counted
        together."""
        counts: Counter[LiveKey] = Counter()
        sizes: dict[LiveKey, tuple[Size, str]] = {}
        for number in memory.live(position, begin):
            tensor, layer = memory.tensors[number], memory.layers[number]
            detail = f"{tuple(tensor.shape)} {tensor.dtype}"
            key = (memory.categories[number], tensor.name, detail, layer is not None)
            counts[key] += self._stands_for(memory, number)
            equation = "G1" if key[0] == "gradients" else memory.equations[number] or "G2"
            sizes[key] = memory.sizes[number], equation
        return [Live(key[0], f"block: {key[1]}" if key[3] else key[1], count, count * sizes[key][0],
                     sizes[key][1], f"{count} x {key[2]}") for key, count in counts.items()]

    def _instant(self, timeline: GroupTimeline, position: int, first_layer: int = 0) -> str:
        """For example `backward, block 32 of 32: down`; blocks are counted from 1."""
        starts = [start for start, _ in timeline.positions]
        step = timeline.positions[bisect_right(starts, position - 1) - 1][1]
        mark_starts = [start for start, _ in timeline.marks]
        phase = timeline.marks[bisect_right(mark_starts, position - 1) - 1][1]
        if step is None:
            return phase
        if step.layer is None:
            where = step.group.name if step.group else "step"
        else:
            number = first_layer + self.walk.model_layer(step.layer) + 1
            where = f"block {number} of {self.run.model.num_layers}"
        return f"{phase}, {where}: {step.op.name}"


def live_of_update(memory: Memory, position: int) -> list[Live]:
    """Temporaries of the optimizer at its own peak."""
    totals: dict[tuple[str, str], list[Size]] = {}
    for number in memory.live(position):
        key = memory.categories[number], memory.tensors[number].name
        totals.setdefault(key, []).append(memory.sizes[number])
    return [Live(category, name, len(sizes), sum(sizes), "O7", "temporaries of the update",
                 sum(-size % MIN_BLOCK_BYTES for size in sizes))
            for (category, name), sizes in totals.items()]


def all_weights(program: Program, walk: Walk) -> tuple[Tensor, ...]:
    """Every weight of the model, in the order of module.parameters(), each copy by itself."""
    layers = program.tape.weight_layers
    weights: list[Tensor] = []
    middle: list[Tensor] = []
    for weight, layer in zip(program.weights, layers, strict=True):
        inside = layer is not None and walk.stands_for(layer) > 1
        if middle and not inside:
            weights += middle * walk.copies
            middle = []
        weights.append(weight)
        if inside:
            middle.append(weight)
    return tuple(weights)


def counted_weights(program: Program, walk: Walk) -> list[tuple[Tensor, int]]:
    """Each walked weight, and how many of the model it stands for."""
    layers = program.tape.weight_layers
    return [(w, walk.stands_for(layer)) for w, layer in zip(program.weights, layers, strict=True)]
