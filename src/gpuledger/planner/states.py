"""What a rank of a stage keeps, and what the update needs beside it, for many ranks' sizes."""

from __future__ import annotations

import numpy as np

from gpuledger.config.run import Run
from gpuledger.memory.allocator.sizes import MIN_BLOCK_BYTES
from gpuledger.memory.layers import Walk
from gpuledger.memory.peak import StepPeak, all_weights, counted_weights
from gpuledger.memory.states import constants_of, model_states, step_constants
from gpuledger.program.device import Device
from gpuledger.program.many_sizes import cells, distinct_cells
from gpuledger.program.model import Stage

from .walks import Array, Bytes


class StageContent:
    """The layers of one stage for some rows of (tp, dp), in `run` as arrays, at several depths."""

    def __init__(self, run: Run, device: Device, stage: Stage, rows: int):
        self.content = StepPeak(run, device, stage)
        self.rows = rows

    def kept(self, depth: Walk) -> Bytes:
        """Parameters, masters and optimizer states. [Z1] [O1]"""
        content = self.content
        counted = counted_weights(content.program, depth)
        states = model_states(counted, content.training, content.policy)
        return Bytes(
            self._cells(sum(state.nbytes for state in states)),
            self._cells(sum(state.rounding_bytes for state in states)),
        )

    def update(self, depth: Walk) -> Bytes:
        """The highest level of the optimizer's temporaries. [O7]"""
        runner = self.content.updated(all_weights(self.content.program, depth))
        memory = runner.memory
        if not memory.events:
            nothing = np.zeros(self.rows, np.int64)
            return Bytes(nothing, nothing)
        each = distinct_cells(memory.sizes, slice(0, self.rows))
        numbers = np.array([number for _, number, _ in memory.events])
        signs = np.array([sign for sign, _, _ in memory.events])[:, None]
        levels = np.cumsum(signs * each[numbers], axis=0)
        rounding = np.cumsum(signs * (-each % MIN_BLOCK_BYTES)[numbers], axis=0)
        row, columns = np.argmax(levels, axis=0), np.arange(self.rows)
        return Bytes(np.maximum(levels[row, columns], 0), rounding[row, columns])

    def _cells(self, size: object) -> Array:
        return cells(size, slice(0, self.rows))


def constants(run: Run, device: Device, rows: int) -> Bytes:
    """Tables, batch and workspaces of one rank, for some rows of (tp, cp, micro-batch). [S14]"""
    states = step_constants(*constants_of(run), device)
    columns = slice(0, rows)
    return Bytes(
        cells(sum(state.nbytes for state in states), columns),
        cells(sum(state.rounding_bytes for state in states), columns),
    )
