"""Who finds the peak of each stage of a run."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.run import Run
from gpuledger.program.device import Device

from ..peak import StepPeak
from .stage_peak import StagePeak, Walks

Finder = StepPeak | StagePeak


def finders(run: Run, device: Device) -> Iterator[Finder]:
    """One for each pipeline stage, in order."""
    if run.parallel.framework == "megatron":
        from ..frameworks.megatron.stage import MegatronStage

        shared: Walks = {}
        for stage in range(run.parallel.pp):
            yield MegatronStage(run, device, stage, shared)
        return
    if run.parallel.pp == 1:
        yield StepPeak(run, device)
        return
    walks: Walks = {}
    for stage in range(run.parallel.pp):
        yield StagePeak(run, device, stage, walks)
