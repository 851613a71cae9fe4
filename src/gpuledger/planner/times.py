"""Step seconds of every layout, from the equations that `estimate` uses for one. [T24]

What depends only on tensor and context parallelism, the micro-batch and sequence parallelism is
computed once for the values that occur. The rest is arithmetic on columns, in pieces that stay in
the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from gpuledger.compute.step_time.counted import counted
from gpuledger.compute.step_time.inputs import Counted, Layout, Software, Traffic
from gpuledger.compute.step_time.of_run import (
    decoder_of,
    device_of,
    recomputed_shares,
    software_of,
)
from gpuledger.compute.step_time.step import Shared, shared_seconds, step_breakdown
from gpuledger.errors import InputError
from gpuledger.program.many_sizes import ManySizes, cells

from .layouts import Layouts, Space
from .rows import Rows
from .walks import Array, CodePaths

AT_ONCE = 16_384  # layouts of one piece


class StepSeconds:
    """Times layouts of one space. Raises InputError where the GPU's record lacks a number."""

    def __init__(self, space: Space):
        self.space, run = space, space.run
        self.decoder = decoder_of(run.model, run.training)
        self.device = device_of(run)
        self.profile = software_of(run.model_copy(update={
            "parallel": run.parallel.model_copy(update={"sequence_parallel": True})}))
        self.counts = software_of(run).counted is not None

    def seconds(self, layouts: Layouts) -> Array:
        """Seconds of one optimizer step of each layout."""
        rows = Rows.of({
            "sequence_parallel": layouts.sequence_parallel, "tp": layouts.tp, "cp": layouts.cp,
            "micro_batch_size": layouts.micro_batch_size,
        })  # fmt: skip
        found = np.empty(len(layouts))
        for members in rows.classes("sequence_parallel", apart=("tp", "cp")):
            software, shared = self._shared(rows, members)
            place = np.zeros(len(rows), np.int64)
            place[members] = np.arange(len(members))
            chosen = np.flatnonzero(np.isin(rows.of_layout, members))
            for start in range(0, len(chosen), AT_ONCE):
                piece = chosen[start : start + AT_ONCE]
                at = place[rows.of_layout[piece]]
                breakdown = step_breakdown(self.decoder, self._layout(layouts[piece]), self.device,
                                           gathered(software, at), gathered(shared, at))
                found[piece] = breakdown.step_seconds
        return found

    def _shared(self, rows: Rows, members: Array) -> tuple[Software, Shared]:
        """Software and shared seconds of some rows, as columns."""
        columns = {name: column[members] for name, column in rows.columns.items()}
        software = self.profile
        if self.counts and not columns["sequence_parallel"][0]:
            software = replace(software, counted=self._counted(columns))
        layout = Layout(
            gpus=columns["tp"] * columns["cp"] * 1.0, global_batch_size=1,
            micro_batch_size=columns["micro_batch_size"] * 1.0, tp=columns["tp"] * 1.0,
            cp=columns["cp"] * 1.0, sequence_parallel=columns["sequence_parallel"] * 1.0,
            gpus_per_node=self.space.run.cluster.gpus_per_node)  # fmt: skip
        return software, shared_seconds(self.decoder, layout, self.device, software)

    def _counted(self, columns: dict[str, Array]) -> Counted | None:
        """Kernels and bytes of PyTorch's operators; None where the program is not divided so."""
        run, found = self.space.run, {}
        number = len(columns["tp"])

        def count(chosen: Array) -> None:
            micro, tp, cp = (ManySizes.of(columns[n][chosen]) for n in ("micro_batch_size", "tp", "cp"))
            training = run.training.model_copy(update={"micro_batch_size": micro})
            found[chosen.tobytes()] = chosen, counted(run.model, training, tp=tp, cp=cp)

        try:
            CodePaths(number).run(np.arange(number), count)
        except InputError:
            return None
        pieces = list(found.values())
        return Counted(_joined("layer", pieces, number), _joined("head", pieces, number),
                       pieces[0][1].head_reruns)

    def _layout(self, layouts: Layouts) -> Layout:
        run = self.space.run
        policies = [recomputed_shares(r, run.model.num_layers) for r in self.space.recompute]
        shares: dict[str, Any] = {name: np.array([policy[name] for policy in policies])[layouts.recompute]
                  for name in policies[0]}
        columns: dict[str, Any] = {name: getattr(layouts, name).astype(np.float64) for name in (
            "gpus", "micro_batch_size", "tp", "pp", "vpp", "cp", "zero_stage", "sequence_parallel")}
        return Layout(**columns, global_batch_size=float(run.training.global_batch_size),
                      gpus_per_node=run.cluster.gpus_per_node, **shares)


def _joined(part: str, pieces: list[tuple[Array, Counted]], number: int) -> Traffic:
    """Traffic of several pieces of the rows as columns."""
    def column(name: str) -> Iterator[Array]:
        values = np.empty(number)
        for chosen, of_piece in pieces:
            size = getattr(getattr(of_piece, part), name)
            values[chosen] = cells(size, slice(0, len(chosen)))
        yield values

    return Traffic(*(next(column(field.name)) for field in fields(Traffic)))


def gathered(record: Any, rows: Array) -> Any:
    """A record of columns (and records of them) with an entry for each of these rows."""
    if is_dataclass(record):
        values = {field.name: gathered(getattr(record, field.name), rows) for field in fields(record)}
        kind: Any = type(record)
        return kind(**values)
    if isinstance(record, tuple):
        chosen = [gathered(value, rows) for value in record]
        return type(record)(*chosen) if hasattr(record, "_fields") else tuple(chosen)
    return record[rows] if isinstance(record, np.ndarray) else record
