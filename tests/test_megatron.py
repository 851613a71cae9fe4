"""Megatron-LM: peaks against whole streams, what is kept, what is refused."""

from __future__ import annotations

import pytest

from gpuledger.estimate import device_of, refuse_unmodelled
from gpuledger.memory.frameworks.megatron.runner import MegatronRunner
from gpuledger.memory.frameworks.megatron.stage import MegatronStage
from gpuledger.memory.frameworks.megatron.stream_peak import highest
from gpuledger.memory.pipeline.runner import stage_order, stage_programs
from megatron_runs import drawn_megatron_run


@pytest.mark.parametrize("seed", range(40))
def test_closed_form_is_the_streams_peak(seed: int) -> None:
    """One walk of each pass and what is bound beside it, against all micro-batches and layers of a step."""
    run = drawn_megatron_run(seed)
    refuse_unmodelled(run)
    stage, device = seed % run.parallel.pp, device_of(run)
    peak = MegatronStage(run, device, stage).find()
    runner = MegatronRunner(run, stage_programs(run, device, stage), stage_order(run, stage), stage)
    for _ in range(3):
        runner.step()
    _, level = highest(runner.memory, runner.marks[2 * len(runner.marks) // 3][0])
    assert peak.requested_bytes == level
    assert sum(int(entry.nbytes) for entry in (*peak.states, *peak.live)) == level
