"""When a stage of Megatron's interleaved schedule receives inputs and gradients: some passes early. [M21]

The stages form a ring. A stage receives the next input right after a forward pass, and the next gradient
right after a backward pass; the first stage's inputs and the last stage's gradients come round the ring,
pp - 1 passes later, and wait where a group has more micro-batches than there are stages.
Ref: Megatron-LM megatron/core/pipeline_parallel/schedules.py
(forward_backward_pipelining_with_interleaving, recv_tensor_from_previous_stage).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.config.megatron import MegatronOptions
from gpuledger.config.run import Run

from ...pipeline.schedules import Pipeline, turns_of


@dataclass(frozen=True)
class Arrival:
    """An input of a chunk, or a gradient of its output."""

    chunk: int
    gradient: bool


Arrivals = dict[int, list[Arrival]]  # by number of the pass before which they are received


def arrivals_of(run: Run, stage: int, num_microbatches: int) -> Arrivals:
    """What is received before which pass of a step. Without interleaving each comes right before its own
    pass, and is not listed."""
    parallel = run.parallel
    found: Arrivals = defaultdict(list)
    if parallel.vpp > 1:
        group = parallel.megatron.microbatch_group_size
        ring = _Ring(Pipeline(parallel.pp, stage, num_microbatches, parallel.vpp, group),
                     parallel.megatron)
        for number, arrival in (*ring.inputs(), *ring.gradients()):
            found[number].append(arrival)
    return dict(found)


class _Ring:
    """The passes of one stage: W forwards, then pairs of a forward and a backward, then backwards."""

    def __init__(self, pipeline: Pipeline, options: MegatronOptions):
        self.pp, self.stage, self.last = pipeline.pp, pipeline.stage, pipeline.chunks - 1
        self.turns, self.ahead = turns_of(pipeline)
        self.total = len(self.turns)
        self.pairs = self.total - self.ahead
        self.overlap = options.overlap_p2p_communication
        self.flush = options.overlap_p2p_communication_warmup_flush

    def forward(self, k: int) -> int:
        """Number of the pass that is the k-th forward."""
        return k if k < self.ahead else 2 * k - self.ahead

    def backward(self, k: int) -> int:
        return self.ahead + 2 * k + 1 if k < self.pairs else self.total + k

    def inputs(self) -> Iterator[tuple[int, Arrival]]:
        """After each forward pass; beside a pair's backward pass where communication overlaps."""
        if self.stage:
            yield 0, Arrival(self.turns[0], gradient=False)
        for k in range(self.total - 1):
            chunk = self._next_input(k)
            if chunk is None:
                continue
            number = self.forward(k) + 1
            if k < self.ahead and self.flush and self.stage:
                number -= 1
            elif k >= self.ahead and not self.overlap:
                number += 1
            yield number, Arrival(chunk, gradient=False)

    def _next_input(self, k: int) -> int | None:
        if self.stage:
            return self.turns[k + 1]
        if k < self.pp - 1 or self.turns[k - self.pp + 1] == self.last:
            return None
        return self.turns[k - self.pp + 1] + 1

    def gradients(self) -> Iterator[tuple[int, Arrival]]:
        """Before the first pair, where there is one, and after each backward pass."""
        if self.stage < self.pp - 1:
            first = self.ahead if self.pairs else self.backward(0)
            yield first, Arrival(self.last, gradient=True)
        for k in range(self.total - 1):
            chunk = self._next_gradient(k)
            if chunk is None:
                continue
            early = self.flush and k >= self.pairs and self.stage < self.pp - 1
            yield self.backward(k) + (not early), Arrival(chunk, gradient=True)

    def _next_gradient(self, k: int) -> int | None:
        if self.stage < self.pp - 1:
            return self.last - self.turns[k + 1]
        if k < self.pp - 1 or self.turns[k - self.pp + 1] == self.last:
            return None
        return self.last - self.turns[k - self.pp + 1] - 1
