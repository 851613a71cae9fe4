"""The peak of a Megatron stage in steady state, from one walk of each pass (see pipeline/stage_peak)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuledger.program.tensor import Tensor

from ...peak import Live, Peak
from ...pipeline.schedules import Pass, in_flight
from ...pipeline.stage_peak import NONE, Moment, StagePeak
from ...states import State
from .bindings import ONE_NUMBER, REPORT
from .bound import Bound
from .overheads import steady
from .rounds import bound_of_stage
from .states import Kept, RankStates, as_states, chunks_of
from .stream_peak import peak_of_stream

BOUND = "inputs and gradients that schedule and model keep bound"


class MegatronStage(StagePeak):
    """Finds the peak of one stage of a Megatron run, with one stage too."""

    rank: RankStates

    def _kept(self) -> tuple[State, ...]:
        """States and workspaces."""
        programs = [chunk.program for chunk in self.chunks]
        chunks = chunks_of([chunk.weights for chunk in self.chunks], self.run)
        self.rank = RankStates(chunks, self.run.parallel, self.stage)
        options = self.run.parallel.megatron
        return tuple(as_states([*self.rank.all(), *steady(options, self.device, programs,
                                                          self.run.parallel)]))

    @property
    def defers(self) -> bool:
        """The output layer is here, and its weight gradients pile up to the end of the step."""
        return (self.run.parallel.megatron.defer_embedding_wgrad_compute
                and any(part.head for part in self.parts))

    def find(self) -> Peak:
        """The highest level of any pass, with what is bound beside it, or of the update."""
        if self.defers:
            return peak_of_stream(self.run, self.device, self.stage, self.states)
        programs = [chunk.program for chunk in self.chunks]
        order, bound = bound_of_stage(self.run, self.stage, programs)
        best, beside = max(self._levels(order, bound), key=lambda found: found[0].level)
        update = self._update_with(bound[-1])
        if update.requested_bytes > best.level + self.states_bytes:
            return update
        peak = self._peak_of(best)
        return replace(peak, live=(*peak.live, *self._live_bound(beside)))

    def _levels(self, order: list[Pass], bound: list[Bound]) -> Iterator[tuple[Moment, Bound]]:
        """Each pass of the step with the highest level in it; equal ones once."""
        seen: set[object] = set()
        none = dict.fromkeys(range(len(self.chunks)), NONE)
        for (step, forwarded, waiting), beside in zip(in_flight(order), bound[:-1], strict=True):
            key = step.kind, step.chunk, tuple(sorted(forwarded.items())), beside
            if key not in seen:
                seen.add(key)
                moment = self._moment(step, forwarded, waiting, dict(none))
                yield replace(moment, level=moment.level + beside.nbytes), beside

    def _live_bound(self, bound: Bound) -> Iterator[Live]:
        if bound.inputs_bytes:
            received = next(t for c in self.chunks for t in (c.program.received, c.program.loss)
                            if t is not None)
            count = bound.inputs_bytes // int(received.nbytes)
            yield Live("activations", BOUND, count, bound.inputs_bytes, "M15",
                       f"{count} x {tuple(received.shape)} {received.dtype}")
        batch = [t for chunk in self.chunks for t in chunk.program.batch] if bound.batches else []
        kept = [(t, bound.batches) for t in batch]
        for tensor, count in (*kept, (ONE_NUMBER, bound.numbers), (REPORT, bound.reports)):
            if count:
                category = "buffers" if tensor in (ONE_NUMBER, REPORT) else "activations"
                yield Live(category, f"of the step: {tensor.name}", count, count * int(tensor.nbytes),
                           "M15", f"{count} x {tuple(tensor.shape)} {tensor.dtype}")

    def _update_with(self, bound: Bound) -> Peak:
        """fp32 copies of 16-bit gradients, and the update's own copies of states that are not fp32."""
        copies = self.rank.gradient_copies().tensors if self.rank.copies_gradients else ()
        unscaled = max(self.rank.unscaled(), key=lambda group: sum(int(t.nbytes) for t in group))
        live = [*self._live_bound(bound),
                *_live(Kept("gradients", "fp32 gradients of the update", copies)),
                *_live(Kept("optimizer", "fp32 copies of states", tuple(unscaled)))]
        total = int(self.states_bytes) + sum(int(entry.nbytes) for entry in live)
        return Peak(total, "optimizer step", tuple(live), self.states)


def _live(kept: Kept) -> Iterator[Live]:
    tensors: tuple[Tensor, ...] = kept.tensors
    if tensors:
        yield Live(kept.category, kept.name, len(tensors), sum(int(t.nbytes) for t in tensors), "M20",
                   f"{len(tensors)} x {tensors[0].dtype}")
