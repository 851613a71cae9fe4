"""Layouts as columns: many ways to divide one training step, one NumPy array per axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gpuledger.config.run import Run
from gpuledger.config.training import Recompute
from gpuledger.memory.pipeline.stages import layers_of_stages

Column = Any  # a NumPy array of integers, one entry per layout


@dataclass(frozen=True)
class Layouts:
    """One entry per layout in each column. recompute: number of a policy in the space's list."""

    gpus: Column
    tp: Column
    pp: Column
    vpp: Column
    cp: Column
    dp: Column
    micro_batch_size: Column
    zero_stage: Column
    sequence_parallel: Column
    recompute: Column

    def __len__(self) -> int:
        return len(self.gpus)

    def __getitem__(self, chosen: Any) -> Layouts:
        """Those of a slice, a mask or an array of numbers."""
        return Layouts(*(getattr(self, name)[chosen] for name in NAMES))

    def row(self, number: int) -> dict[str, int]:
        """One layout as plain numbers."""
        return {name: int(getattr(self, name)[number]) for name in NAMES}

    def num_microbatches(self, global_batch_size: int) -> Column:
        """Forward and backward passes of one rank in one step."""
        return global_batch_size // (self.dp.astype(np.int64) * self.micro_batch_size)

    @classmethod
    def joined(cls, parts: list[Layouts]) -> Layouts:
        """One after another; at least one part."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in NAMES))


NAMES = tuple(field.name for field in fields(Layouts))


@dataclass(frozen=True)
class Space:
    """What a plan chooses from; everything else is the run's. Every combination that the model, the
    batch and the GPUs allow is a layout.

    gpus: numbers of GPUs. recompute: the policies. framework: the run's, whose layouts these are.
    """

    run: Run
    gpus: tuple[int, ...]
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    vpp: tuple[int, ...]
    cp: tuple[int, ...]
    micro_batch_size: tuple[int, ...]
    zero_stage: tuple[int, ...]
    sequence_parallel: tuple[int, ...]
    recompute: tuple[Recompute, ...]

    def run_of(self, row: dict[str, int]) -> Run:
        """The run of one layout. It is not validated: the space holds what divides."""
        run = self.run
        training = run.training.model_copy(
            update={
                "micro_batch_size": row["micro_batch_size"],
                "recompute": self.recompute[row["recompute"]],
            }
        )
        parallel = run.parallel.model_copy(
            update={name: row[name] for name in ("tp", "pp", "vpp", "cp", "dp", "zero_stage")}
            | {"sequence_parallel": bool(row["sequence_parallel"])}
        )
        layers, pp = run.model.num_layers, row["pp"]
        if layers % pp:  # said, so that a launcher can be told
            parallel = parallel.model_copy(update={"stage_layers": layers_of_stages(layers, pp)})
        cluster = run.cluster.model_copy(
            update={
                "gpus": row["gpus"],
                "gpus_per_node": min(run.cluster.gpus_per_node, row["gpus"]),
            }
        )
        return run.model_copy(
            update={"training": training, "parallel": parallel, "cluster": cluster}
        )

    def axes(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Each axis by name, with its values."""
        for name in (
            "gpus", "tp", "pp", "vpp", "cp", "micro_batch_size", "zero_stage",
            "sequence_parallel", "recompute",
        ):  # fmt: skip
            yield name, getattr(self, name)
