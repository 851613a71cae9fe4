"""Pipeline schedules: the order in which one stage runs forward (F), backward (B) and weight (W) passes.

A stage holds one or more model chunks. A schedule that splits backward runs the input gradient's pass
(B) before the weight gradient's (W); otherwise B is both. Orders are data; what a pass allocates is known
to the program alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"
SPLIT_BACKWARD = ("zb-h1", "zb-v", "dualpipe")


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one micro-batch through one chunk. splits: its weight gradients come in a pass W."""

    kind: str
    chunk: int
    micro_batch: int
    splits: bool = False


@dataclass(frozen=True)
class Pipeline:
    """Stage `stage` of pp, its model chunks, micro-batches of a step.

    group: micro-batches that run through one chunk before the next chunk's turn (interleaved).
    """

    pp: int
    stage: int
    num_microbatches: int
    chunks: int = 1
    group: int | None = None


class Order:
    """Writes passes; every kind of pass of a chunk takes its micro-batches in turn."""

    def __init__(self, num_microbatches: int) -> None:
        self.passes: list[Pass] = []
        self.num_microbatches = num_microbatches
        self.next: dict[tuple[str, int], int] = {}
        self.waiting: list[Pass] = []  # weight passes, first come first served

    def forward(self, chunk: int) -> None:
        self._add(FORWARD, chunk)

    def backward(self, chunk: int, *, splits: bool = False) -> None:
        done = self._add(BACKWARD, chunk, splits)
        if done is not None and splits:
            self.waiting.append(Pass(WEIGHT, chunk, done.micro_batch))

    def weight(self) -> None:
        """The oldest weight pass that waits, if any."""
        if self.waiting:
            self.passes.append(self.waiting.pop(0))

    def weight_of(self, chunk: int) -> bool:
        """The oldest weight pass of a chunk that waits; whether there was one."""
        oldest = next((done for done in self.waiting if done.chunk == chunk), None)
        if oldest is not None:
            self.waiting.remove(oldest)
            self.passes.append(oldest)
        return oldest is not None

    def _add(self, kind: str, chunk: int, splits: bool = False) -> Pass | None:
        number = self.next.get((kind, chunk), 0)
        if number == self.num_microbatches:  # a step of fewer micro-batches than the pattern has
            return None
        self.next[kind, chunk] = number + 1
        done = Pass(kind, chunk, number, splits)
        self.passes.append(done)
        return done


def gpipe(pipeline: Pipeline) -> list[Pass]:
    """All forward passes, then all backward passes. Ref: GPipe (1811.06965). [X11]"""
    order = Order(pipeline.num_microbatches)
    for _ in range(pipeline.num_microbatches):
        order.forward(0)
    for _ in range(pipeline.num_microbatches):
        order.backward(0)
    return order.passes


def one_forward_one_backward(pipeline: Pipeline) -> list[Pass]:
    """pp - stage micro-batches in flight at most. Ref: PipeDream-Flush (2006.09503). [X12]"""
    order, m = Order(pipeline.num_microbatches), pipeline.num_microbatches
    ahead = min(m, pipeline.pp - pipeline.stage - 1)
    for _ in range(ahead):
        order.forward(0)
    for _ in range(m - ahead):
        order.forward(0)
        order.backward(0)
    for _ in range(ahead):
        order.backward(0)
    return order.passes


def interleaved(pipeline: Pipeline) -> list[Pass]:
    """Chunk after chunk for each group of micro-batches; backward in the opposite order of chunks.

    Ahead of the first backward: 2 (pp - stage - 1) + (v - 1) group passes. Ref: Narayanan et al.
    2104.04473; Megatron-LM megatron/core/pipeline_parallel/schedules.py. [X13]
    """
    m, v = pipeline.num_microbatches, pipeline.chunks
    turns, ahead = turns_of(pipeline)
    order = Order(m)
    for chunk in turns[:ahead]:
        order.forward(chunk)
    for i, chunk in enumerate(turns[ahead:]):
        order.forward(chunk)
        order.backward(v - 1 - turns[i])
    for chunk in turns[len(turns) - ahead :]:
        order.backward(v - 1 - chunk)
    return order.passes


def turns_of(pipeline: Pipeline) -> tuple[list[int], int]:
    """The chunks of the interleaved forward passes, in order, and how many run before the first backward.
    A backward pass runs through the opposite chunk."""
    m, v = pipeline.num_microbatches, pipeline.chunks
    group = pipeline.group or pipeline.pp
    turns = [
        chunk
        for start in range(0, m, group)
        for chunk in range(v)
        for _ in range(min(group, m - start))
    ]
    return turns, min(2 * (pipeline.pp - pipeline.stage - 1) + (v - 1) * group, len(turns))


def zb_h1(pipeline: Pipeline) -> list[Pass]:
    """1F1B whose stage s lets s weight passes wait, so that every stage holds pp micro-batches at most.

    Ref: Zero Bubble (2401.10241) section 3.1; torch ScheduleInterleavedZeroBubble with one chunk. [X14]
    """
    order = Order(pipeline.num_microbatches)
    for step in one_forward_one_backward(pipeline):
        if step.kind == FORWARD:
            order.forward(0)
            continue
        order.backward(0, splits=True)
        if len(order.waiting) > pipeline.stage:
            order.weight()
    while order.waiting:
        order.weight()
    return order.passes


def zb_v(pipeline: Pipeline) -> list[Pass]:
    """Two chunks in a V: the second runs back from the last stage to the first; 2 pp chunks in flight.

    Ref: Zero Bubble (2401.10241) section 6; torch ScheduleZBVZeroBubble. [X15]
    """
    p, s = pipeline.pp, pipeline.stage
    m = max(
        pipeline.num_microbatches, 2 * p - 1
    )  # the pattern; what is beyond the step is left out
    order = Order(m)

    def whole_backward(chunk: int) -> None:
        order.backward(chunk, splits=True)
        order.weight()

    for _ in range(2 * (p - s) - 1):
        order.forward(0)
    for _ in range(s):
        order.forward(1)
        order.forward(0)
    for _ in range(p - s):
        order.forward(1)
        whole_backward(1)
    for _ in range(m - p):
        order.forward(0)
        whole_backward(0)
        order.forward(1)
        whole_backward(1)
    for _ in range(s):
        order.backward(0, splits=True)
        order.backward(1, splits=True)
    for _ in range(p - s):
        order.backward(0, splits=True)
        order.weight_of(0)
    for chunk in (1, 0):
        while order.weight_of(chunk):
            pass
    return [done for done in order.passes if done.micro_batch < pipeline.num_microbatches]


def dualpipe(pipeline: Pipeline) -> list[Pass]:
    """Micro-batches from both ends: chunk 0 of stage s is the model's part s, chunk 1 part pp - 1 - s.

    Half of the micro-batches go each way, so a rank keeps two parts of the model. Ref: DeepSeek-V3
    (2412.19437) section 3.2.1 and its DualPipe code. [X16]
    """
    half_ranks, half = pipeline.pp // 2, pipeline.num_microbatches // 2
    inner = min(pipeline.stage, pipeline.pp - 1 - pipeline.stage)
    near, far = (0, 1) if pipeline.stage < half_ranks else (1, 0)
    order = Order(half)
    for _ in range(2 * (half_ranks - inner - 1)):
        order.forward(near)
    for _ in range(inner + 1):
        order.forward(near)
        order.forward(far)
    for _ in range(half_ranks - inner - 1):
        order.backward(far, splits=True)
        order.weight()
        order.forward(far)
    for _ in range(half - pipeline.pp + inner + 1):
        for there, back in ((near, far), (far, near)):
            order.forward(there)
            order.backward(back)
    for _ in range(half_ranks - inner - 1):
        order.backward(far)
        order.forward(far)
        order.backward(near)
    halfway = (inner + 1) // 2
    for i in range(inner + 1):
        order.backward(far, splits=i > halfway or (i == halfway and inner % 2 == 1))
        order.backward(near, splits=i >= halfway)
    for _ in range(half_ranks - inner - 1):
        order.weight()
        order.backward(near, splits=True)
    while order.waiting:
        order.weight()
    return order.passes


SCHEDULES: dict[str, Callable[[Pipeline], list[Pass]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
}


def passes(schedule: str, pipeline: Pipeline) -> list[Pass]:
    """The passes of one step on one stage, in order."""
    return SCHEDULES[schedule](pipeline)


def in_flight(order: list[Pass]) -> Iterator[tuple[Pass, dict[int, int], dict[int, int]]]:
    """Each pass with how many micro-batches of each chunk are held beside its own when it begins: after
    forward and before backward, and after a backward whose weight pass waits."""
    forwarded: dict[int, int] = {}
    waiting: dict[int, int] = {}
    for step in order:
        kind, chunk = step.kind, step.chunk
        if kind == BACKWARD:
            forwarded[chunk] -= 1
        if kind == WEIGHT:
            waiting[chunk] -= 1
        yield step, dict(forwarded), dict(waiting)
        if kind == FORWARD:
            forwarded[chunk] = forwarded.get(chunk, 0) + 1
        if kind == BACKWARD and step.splits:
            waiting[chunk] = waiting.get(chunk, 0) + 1
