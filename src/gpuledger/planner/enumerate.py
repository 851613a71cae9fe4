"""Every layout of a space, by divisors: nothing is made that does not divide, and what does not is
counted with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from gpuledger.config.model import Model

from .layouts import Layouts, Space

NO_MESH = "tp x pp x cp does not divide the GPUs"
NO_BATCH = "dp does not divide the global batch"
NO_MICRO_BATCH = "micro-batch x dp does not divide the global batch"
NO_INTERLEAVING = "interleaving needs micro-batches in multiples of pp"
NO_SEQUENCE = "tp does not divide a rank's part of the sequence (sequence parallelism)"
NO_ZERO_2 = "no framework divides gradients or parameters (ZeRO-2, 3) between pipeline stages"
SAME = "a ZeRO stage, or sequence parallelism, that divides nothing"


def layouts(space: Space) -> tuple[Layouts, Counter[str]]:
    """All layouts of a space, and how many combinations were left out, by reason. [L3]"""
    dropped: Counter[str] = Counter()
    batch = space.run.training.global_batch_size
    cheap = CheapAxes(space)
    parts = []
    for gpus, tp, pp, cp in product(space.gpus, space.tp, space.pp, space.cp):
        ranks = tp * pp * cp
        if gpus % ranks:
            dropped[NO_MESH] += 1
            continue
        dp = gpus // ranks
        if batch % dp:
            dropped[NO_BATCH] += 1
            continue
        for micro in space.micro_batch_size:
            if batch // dp % micro:
                dropped[NO_MICRO_BATCH] += 1
                continue
            rest = cheap.of((tp, cp, pp, dp), batch // dp // micro, dropped)
            parts.append(((gpus, tp, pp, cp, dp, micro), rest))
    return _columns(parts), dropped


def _columns(parts: Sequence[tuple[tuple[int, ...], Any]]) -> Layouts:
    lengths = np.array([len(rest) for _, rest in parts], dtype=np.int64)
    heads = np.array([head for head, _ in parts], dtype=np.int32).reshape(-1, 6)
    gpus, tp, pp, cp, dp, micro = (np.repeat(column, lengths) for column in heads.T)
    tails = [rest for _, rest in parts] or [np.empty((0, 4), np.int32)]
    vpp, zero, sequence, recompute = np.concatenate(tails).T
    return Layouts(gpus, tp, pp, vpp, cp, dp, micro, zero, sequence, recompute)


class CheapAxes:
    """vpp, ZeRO stage, sequence parallelism and recompute, for each kind of mesh made once."""

    def __init__(self, space: Space):
        self.space = space
        self.made: dict[tuple[int, int, int, bool, bool], tuple[Any, Counter[str]]] = {}

    def of(self, mesh: tuple[int, int, int, int], m: int, dropped: Counter[str]) -> Any:
        """Rows (vpp, zero_stage, sequence_parallel, recompute) of a mesh (tp, cp, pp, dp)."""
        tp, cp, pp, dp = mesh
        key = (tp, cp, pp, dp * cp > 1, m % pp == 0)
        if key not in self.made:
            self.made[key] = self._make(*key)
        rows, without = self.made[key]
        dropped.update(without)
        return rows

    def _make(
        self, tp: int, cp: int, pp: int, several: bool, whole: bool
    ) -> tuple[Any, Counter[str]]:
        space, without, rows = self.space, Counter[str](), []
        seq_len = space.run.training.seq_len // cp
        chunks = [v for v in space.vpp if v in chunks_of(space.run.model, pp)]
        for vpp, zero, sp, recompute in product(
            chunks, space.zero_stage, space.sequence_parallel, range(len(space.recompute))
        ):
            if (sp and tp == 1) or (zero and not several):
                without[SAME] += 1
            elif sp and seq_len % tp:
                without[NO_SEQUENCE] += 1
            elif vpp > 1 and not whole:
                without[NO_INTERLEAVING] += 1
            elif zero >= 2 and pp > 1:
                without[NO_ZERO_2] += 1
            else:
                rows.append((vpp, zero, sp, recompute))
        return np.array(rows, dtype=np.int32).reshape(-1, 4), without


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def tensor_parallel_sizes(model: Model, most: int) -> list[int]:
    """What divides heads, key and value heads and the MLP's width, up to `most`."""
    sizes = (model.num_heads, model.num_kv_heads, model.ffn_hidden_size)
    return [t for t in range(1, most + 1) if all(size % t == 0 for size in sizes)]


def stage_counts(model: Model) -> list[int]:
    """Pipeline stages into which the blocks divide, or would with embedding and head as a block
    each."""
    L = model.num_layers
    return [p for p in range(1, L + 1) if L % p == 0 or (p > 2 and (L + 2) % p == 0)]


def chunks_of(model: Model, pp: int) -> list[int]:
    """Model chunks per stage: 1, or what divides the blocks of every stage."""
    if pp == 1 or model.num_layers % pp:
        return [1]
    return divisors(model.num_layers // pp)
