"""Peak memory of every layout, as integers, from the walks that `estimate` makes for one.

A layout's peak is a maximum of sums: what a stage keeps, the highest level of one pass, what waits
beside it and the gradients so far. Each term depends on few of the axes, so it is computed once for
the values that occur (walks.py, states.py) and gathered. The sums are those of
memory/pipeline/stage_peak.py. [L1]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import lcm
from typing import Any

import numpy as np

from gpuledger.config.run import Run
from gpuledger.estimate import device_of
from gpuledger.garbage import collected_later
from gpuledger.memory.context import HEAVIEST_RANKS
from gpuledger.memory.frameworks import policy_of
from gpuledger.memory.layers import Walk, layer_period, plan_walk
from gpuledger.memory.pipeline.schedules import FORWARD
from gpuledger.memory.pipeline.stage_peak import ALL
from gpuledger.program.many_sizes import ManySizes

from .layouts import Layouts, Space
from .rows import Rows
from .stages import ROUNDS, Moment, PartKey, StageKind, stage_kinds
from .states import StageContent, constants
from .walks import FIELDS, Array, Bytes, CodePaths, Depth, PartWalk, PassBytes

Wanted = dict[tuple[PartKey, str], Array]  # which rows a part is walked for


class PeakMemory:
    """Finds the peaks of layouts of one space. Raises what `estimate` raises for one of them."""

    def __init__(self, space: Space):
        self.space, self.device = space, device_of(space.run)
        self.model = space.run.model
        periods = [layer_period(self.model, self._training(r)) for r in range(len(space.recompute))]
        self.period = lcm(*periods)

    def _training(self, recompute: int) -> Any:
        return self.space.run.training.model_copy(
            update={"recompute": self.space.recompute[recompute]}
        )

    def peaks(self, layouts: Layouts) -> Bytes:
        """The fullest stage of each layout: requested bytes, and what rounding adds.

        Of context-parallel ranks that which needs most in the first stage, as in memory/context.py.
        """
        found = Bytes.empty(len(layouts))
        divided = layouts.cp > 1
        for chosen, ranks in ((np.flatnonzero(~divided), (None,)),
                              (np.flatnonzero(divided), HEAVIEST_RANKS)):
            if len(chosen):
                of_ranks = [self._at_rank(rank)._fullest(layouts[chosen]) for rank in ranks]
                fullest, first = of_ranks[0]
                for other, other_first in of_ranks[1:]:
                    fullest = fullest.replaced(other_first.requested > first.requested, other)
                found.put(chosen, fullest)
        return found

    def _at_rank(self, cp_rank: int | None) -> PeakMemory:
        """The same for one of the context-parallel ranks."""
        if cp_rank is None or self.space.run.parallel.cp_rank is not None:
            return self
        run = _with(self.space.run, parallel={"cp_rank": cp_rank})
        return PeakMemory(replace(self.space, run=run))

    def _fullest(self, layouts: Layouts) -> tuple[Bytes, Bytes]:
        """(the fullest stage of each layout, its first stage)."""
        walked, kept = self._walk_rows(layouts), self._state_rows(layouts)
        groups = list(self._groups(layouts))
        tables = _Tables(self, walked, kept, groups)
        fullest, first = Bytes.empty(len(layouts)), Bytes.empty(len(layouts))
        for chosen, kinds in groups:
            stages = tables.stages(kinds, walked.of_layout[chosen], kept.of_layout[chosen])
            best = stages[0]
            for stage in stages[1:]:
                best = best.higher(stage)
            fullest.put(chosen, best)
            first.put(chosen, stages[0])
        return fullest, first

    @staticmethod
    def _walk_rows(layouts: Layouts) -> Rows:
        """What a walk depends on; the data-parallel ranks only where they divide gradients."""
        several = layouts.dp * layouts.cp > 1         # ZeRO divides over both
        stage = np.where((layouts.zero_stage >= 2) & several, layouts.zero_stage, 0)
        return Rows.of({
            "recompute": layouts.recompute, "sequence_parallel": layouts.sequence_parallel,
            "zero_stage": stage, "tp": layouts.tp, "cp": layouts.cp,
            "micro_batch_size": layouts.micro_batch_size, "dp": np.where(stage > 0, layouts.dp, 1),
        })  # fmt: skip

    @staticmethod
    def _state_rows(layouts: Layouts) -> Rows:
        """What states depend on."""
        ranks = layouts.dp * layouts.cp
        stage = np.where(ranks > 1, layouts.zero_stage, 0)
        return Rows.of(
            {"zero_stage": stage, "tp": layouts.tp, "dp": np.where(stage > 0, ranks, 1)}
        )

    def _groups(self, layouts: Layouts) -> Iterator[tuple[Array, tuple[StageKind, ...]]]:
        """Layouts with the same pipeline, and the stages that can be its fullest."""
        m = layouts.num_microbatches(self.space.run.training.global_batch_size)
        seen = np.minimum(m, np.where(layouts.pp == 1, 2, ROUNDS * layouts.pp))
        rows = Rows.of({"pp": layouts.pp, "vpp": layouts.vpp, "m": seen})
        order = np.argsort(rows.of_layout, kind="stable")
        ends = np.cumsum(np.bincount(rows.of_layout, minlength=len(rows)))
        for number, chosen in enumerate(np.split(order, ends[:-1])):
            pp, vpp, micro_batches = (int(rows.columns[n][number]) for n in ("pp", "vpp", "m"))
            run = _with(self.space.run, parallel={"pp": pp, "vpp": vpp})
            yield chosen, stage_kinds(run, micro_batches, self.period)

    def plan(self, num_layers: int, run: Run) -> Walk:
        """How `estimate` walks a part of so many blocks."""
        return plan_walk(self.model, run.training, policy_of(run.parallel), num_layers)

    def depth(self, part: PartKey, run: Run) -> tuple[object, Depth]:
        """How a part is walked here; those of the same length share a walk."""
        alike = layer_period(self.model, run.training) == 1 and not policy_of(run.parallel).neighbours
        depth = Depth.of(part.num_layers, lambda n: self.plan(n, run), alike=alike)
        return len(depth.weights), depth

    def content(self, part: PartKey, run: Run) -> tuple[object, Walk]:
        """The same for what is kept."""
        walk = self.plan(part.num_layers, run)
        return replace(walk, copies=0), walk


def _with(run: Run, **parts: dict[str, Any]) -> Run:
    """The run with some fields changed, which are not validated."""
    return run.model_copy(
        update={name: getattr(run, name).model_copy(update=fields) for name, fields in parts.items()}
    )


class _Tables:
    """The terms of the sums, one entry per row."""

    def __init__(self, peaks: PeakMemory, walked: Rows, kept: Rows, groups: list[Any]):
        self.peaks, self.walked, self.kept = peaks, walked, kept
        self.passes: dict[tuple[PartKey, str], PassBytes] = {}
        self.states: dict[PartKey, Bytes] = {}
        self.updates: dict[PartKey, Bytes] = {}
        self.constants = Bytes.empty(len(walked))
        self.paths = CodePaths(len(walked))
        wanted, contents = self._wanted(groups)
        for rows in walked.classes(
            "recompute", "sequence_parallel", "zero_stage", apart=("tp", "cp")
        ):
            self._walk_class(rows, wanted)
        for rows in kept.classes("zero_stage", apart=("tp",)):
            self._keep_class(rows, contents)

    def _wanted(self, groups: list[Any]) -> tuple[Wanted, dict[PartKey, Array]]:
        """For each part (after each kind of earlier gradients) and stage, the rows that need it."""
        wanted: Wanted = defaultdict(lambda: np.zeros(len(self.walked), bool))
        contents: dict[PartKey, Array] = defaultdict(lambda: np.zeros(len(self.kept), bool))
        for chosen, kinds in groups:
            rows = self.walked.of_layout[chosen]
            for kind in kinds:
                contents[kind.content][self.kept.of_layout[chosen]] = True
                for key in _needed(kind):
                    wanted[key][rows] = True
        return wanted, contents

    def _walk_class(self, rows: Array, wanted: Wanted) -> None:
        """Rows of one code path, or of few: where sizes take different ones they are divided."""
        peaks, columns = self.peaks, self.walked.columns

        def run_of(chosen: Array) -> Run:
            row = {name: ManySizes.of(column[chosen]) for name, column in columns.items()}
            training = {"recompute": peaks.space.recompute[int(columns["recompute"][rows[0]])],
                        "micro_batch_size": row["micro_batch_size"]}
            parallel = {name: row[name] for name in ("tp", "cp", "dp", "zero_stage")}
            sequence = bool(columns["sequence_parallel"][rows[0]])
            return _with(peaks.space.run, training=training,
                         parallel=parallel | {"sequence_parallel": sequence, "pp": 1, "vpp": 1})

        def set_constants(chosen: Array) -> None:
            self.constants.put(chosen, constants(run_of(chosen), peaks.device, len(chosen)))

        self.paths.run(rows, set_constants)
        one = run_of(rows[:1])
        for parts, masks in _families(wanted, rows, lambda part: peaks.depth(part, one)):

            @collected_later()
            def walk(chosen: Array, parts: Any = parts, masks: Any = masks) -> None:
                stage = next(iter(parts)).stage
                found = PartWalk(run_of(chosen), peaks.device, stage, list(parts.values()))
                for earlier, mask in masks.items():
                    if mask[chosen].any():
                        self._put_passes(parts, earlier, chosen, found.after(earlier, len(chosen)))

            needed = np.any([mask[rows] for mask in masks.values()], axis=0)
            self.paths.run(rows[needed], walk)

    def _put_passes(
        self, parts: dict[PartKey, Depth], earlier: str, rows: Array, found: PassBytes
    ) -> None:
        for depth, part in enumerate(parts):
            key = part, earlier
            if key not in self.passes:
                self.passes[key] = PassBytes(*(Bytes.empty(len(self.walked)) for _ in FIELDS))
            for name in FIELDS:
                getattr(self.passes[key], name).put(rows, getattr(found, name)[depth])

    def _keep_class(self, rows: Array, contents: dict[PartKey, Array]) -> None:
        peaks, columns = self.peaks, self.kept.columns

        def run_of(chosen: Array) -> Run:
            row = {name: ManySizes.of(column[chosen]) for name, column in columns.items()}
            return _with(peaks.space.run, training={"micro_batch_size": 1, "recompute": "none"},
                         parallel=row | {"sequence_parallel": False, "cp": 1, "pp": 1, "vpp": 1})

        one = run_of(rows[:1])
        wanted = {(part, ""): mask for part, mask in contents.items()}
        for parts, masks in _families(wanted, rows, lambda part: peaks.content(part, one)):
            needed = masks[""][rows]

            @collected_later()
            def keep(chosen: Array, parts: Any = parts) -> None:
                stage = next(iter(parts)).stage
                content = StageContent(run_of(chosen), peaks.device, stage, len(chosen))
                for part, depth in parts.items():
                    for table, found in ((self.states, content.kept(depth)),
                                         (self.updates, content.update(depth))):
                        table.setdefault(part, Bytes.empty(len(self.kept))).put(chosen, found)

            CodePaths(len(self.kept)).run(rows[needed], keep)

    def stages(self, kinds: tuple[StageKind, ...], rows: Array, kept: Array) -> list[Bytes]:
        """The peak of each kind of stage of layouts with one pipeline, each with its rows."""
        peaks = []
        for kind in kinds:
            level = self.level(kind.moments[0], rows)
            for moment in kind.moments[1:]:
                level = level.higher(self.level(moment, rows))
            gradients = [self.passes[part, ALL].gradients[rows] for part in kind.parts]
            update = sum(gradients[1:], gradients[0]) + self.updates[kind.content][kept]
            peaks.append(level.higher(update) + self.states[kind.content][kept] + self.constants[rows])
        return peaks

    def level(self, moment: Moment, rows: Array) -> Bytes:
        """A pass, what waits beside it, and the gradients so far."""
        own = self.passes[moment.part, moment.earlier]
        level = (own.forward if moment.kind == FORWARD else own.backward)[rows]
        for part, count in moment.waiting:
            level = level + self.passes[part, ALL].held[rows] * count
        for part, count in moment.with_gradients:
            level = level + self.passes[part, ALL].gradients[rows] * count
        return level


def _needed(kind: StageKind) -> Iterator[tuple[PartKey, str]]:
    """The walks that a stage's sums look at."""
    for moment in kind.moments:
        yield moment.part, moment.earlier
        for part, _ in (*moment.waiting, *moment.with_gradients):
            yield part, ALL
    for part in kind.parts:
        yield part, ALL


def _families(
    wanted: Wanted, rows: Array, family: Callable[[PartKey], tuple[object, Any]]
) -> Iterator[tuple[dict[PartKey, Any], dict[str, Array]]]:
    """Parts that one walk serves, with their depths, and for each kind of earlier gradients which
    rows want it. family: (what is the same for them, depth)."""
    families: dict[Any, tuple[dict[PartKey, Any], dict[str, Array]]] = {}
    for (part, earlier), mask in wanted.items():
        if mask[rows].any():
            same, depth = family(part)
            key = part.embedding, part.head, part.phase, same
            parts, masks = families.setdefault(key, ({}, {}))
            parts[part] = depth
            masks[earlier] = mask | masks.get(earlier, False)
    yield from families.values()
