"""The passes of a Megatron step that differ: a schedule's rounds repeat, and what is bound beside them grows
by the same batches and reports in each. [M15]

A round is a group of micro-batches through all chunks. Between the first backward pass and the last forward
pass one round is like the next, so most of them are left out: a step of fewer micro-batches is walked, and
what the rounds that were left out pile up is added behind one of them. On both sides of that place one whole
round is kept; where something piles up, its levels are the lowest and the highest of all rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpuledger.config.run import Run
from gpuledger.program.model import Program

from ...pipeline.runner import stage_order
from ...pipeline.schedules import BACKWARD, FORWARD, Pass
from .arrivals import arrivals_of
from .bound import Bound, bound_in_step

ROUNDS = 5      # that are walked between the first backward and the last forward pass


def bound_of_stage(run: Run, stage: int,
                   programs: Sequence[Program]) -> tuple[list[Pass], list[Bound]]:
    """Passes of a step, among them all that differ, and what is bound during each and after the last."""
    count, group = run.num_microbatches, micro_batches_of_round(run)
    left_out = max(0, count // group - _rounds(run, group))
    order, bound = _walk(run, stage, programs, count - left_out * group)
    if not left_out:
        return order, bound
    piled_up = with_rounds(order, bound, 2 * group * run.parallel.vpp, left_out)
    return (order, piled_up) if piled_up else _walk(run, stage, programs, count)


def micro_batches_of_round(run: Run) -> int:
    """Those that run through one chunk before the next chunk's turn."""
    parallel = run.parallel
    return (parallel.megatron.microbatch_group_size or parallel.pp) if parallel.vpp > 1 else 1


def _rounds(run: Run, group: int) -> int:
    """ROUNDS, and as many more as run before the first backward pass."""
    pp, vpp = run.parallel.pp, run.parallel.vpp
    ahead = 2 * (pp - 1) + (vpp - 1) * group
    return ROUNDS - (-ahead // (group * vpp))


def _walk(run: Run, stage: int, programs: Sequence[Program],
          count: int) -> tuple[list[Pass], list[Bound]]:
    order = stage_order(run, stage, count)
    arrivals = arrivals_of(run, stage, count)
    return order, bound_in_step(order, arrivals, programs, run.parallel.megatron)


def with_rounds(order: Sequence[Pass], bound: Sequence[Bound], length: int,
                times: int) -> list[Bound] | None:
    """What would be bound after so many more rounds of `length` passes, which go behind the third of this
    step; None where its rounds are not alike."""
    first = next((i for i, done in enumerate(order) if done.kind == BACKWARD), 0) - 1
    begin, cut, end = first + length, first + 3 * length, first + 4 * length
    if first < 0 or end > len(order):
        return None
    kinds = [(done.kind, done.chunk) for done in order[begin:end]]
    chunks = {kind: Counter(c for k, c in kinds[:length] if k == kind) for kind in (FORWARD, BACKWARD)}
    batches = bound[cut].batches - bound[cut - length].batches
    reports = bound[cut].reports - bound[cut - length].reports
    alike = (kinds[length:] == kinds[:-length] and chunks[FORWARD] == chunks[BACKWARD]
             and all(grown(bound[i], batches, reports) == bound[i + length]
                     for i in range(begin, end - length)))
    if not alike:
        return None
    after = grown(bound[-1], times * batches, 0)         # the schedule is over: reports are let go
    return [*bound[:cut], *(grown(b, times * batches, times * reports) for b in bound[cut:-1]), after]


def grown(bound: Bound, batches: int, reports: int) -> Bound:
    """With so many more batches and reports kept."""
    return replace(bound, batches=bound.batches + batches, reports=bound.reports + reports)
