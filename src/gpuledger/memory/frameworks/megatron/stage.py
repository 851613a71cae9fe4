"""The peak of a Megatron stage in steady state, from one walk of each pass (see pipeline/stage_peak)."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.config.run import Run
from gpuledger.program.model import Program
from gpuledger.program.tensor import Tensor

from ...peak import Peak
from ...pipeline.stage_peak import StagePeak
from ...states import State
from .overheads import steady
from .states import Chunk, Kept, RankStates, as_states


class MegatronStage(StagePeak):
    """Finds the peak of one stage of a Megatron run, with one stage too."""

    def _kept(self) -> tuple[State, ...]:
        """States, workspaces, and what schedule and model keep bound."""
        programs = [chunk.program for chunk in self.chunks]
        chunks = chunks_of(programs, [chunk.weights for chunk in self.chunks], self.run)
        rank = RankStates(chunks, self.run.parallel, self.stage)
        options = self.run.parallel.megatron
        kept = [*rank.all(), *steady(options, self.device, programs, self.run.parallel), *self._bound()]
        return tuple(as_states(kept))

    def _bound(self) -> list[Kept]:
        """2 n for each chunk that receives; batches of a step, where a release keeps them. [M15]"""
        received = [c.program.received for c in self.chunks if c.program.received is not None]
        bound = tuple(Tensor(f"last {what}", t.shape, t.dtype) for t in received
                      for what in ("input", "gradient"))
        kept = [Kept("activations", "last input and its gradient", bound)]
        if self.run.parallel.megatron.keeps_batches:
            of_one = [t for c in self.chunks for t in c.program.batch]
            tensors = tuple(of_one * (self.run.num_microbatches - 1))
            kept.append(Kept("activations", "batches of the step", tensors))
        return [k for k in kept if k.tensors]

    def _update(self) -> Peak:
        """One fused kernel over all shards: no temporaries."""
        return Peak(int(self.states_bytes), "optimizer step", (), self.states)


def chunks_of(programs: Sequence[Program], weights: Sequence[Sequence[Tensor]], run: Run) -> list[Chunk]:
    """The chunks' weights; on a stage without embedding a tied output layer is a copy. With several
    stages the embedding itself is shared too."""
    tied = run.model.tie_embeddings and run.parallel.pp > 1
    found = []
    for of_chunk in weights:
        shared = [w for w in of_chunk if w.name in ("word_embeddings.weight", "output_layer.weight")]
        found.append(Chunk(tuple(of_chunk), shared[0] if tied and shared else None))
    return found
