"""The engine's stream of a steady step against streams recorded from PyTorch. No torch needed."""
from __future__ import annotations

import pytest

from golden_streams import NAMES, Golden, golden
from gpuledger.memory.run import steady_step
from gpuledger.program.model import build
from gpuledger.torch_runs.self_check.compare import first_difference, peak_and_end


def engine_events(recorded: Golden):
    run = recorded.run
    program = build(run.model, run.training, recorded.device)
    return steady_step(program, run.training, run.num_microbatches).memory.events


def test_there_are_streams_of_four_capabilities():
    assert len(NAMES) >= 12
    capabilities = {golden(name).device.capability for name in NAMES}
    assert capabilities == {(8, 0), (8, 9), (9, 0), (10, 0)}


@pytest.mark.parametrize("name", NAMES)
def test_stream_equals_pytorch(name):
    recorded = golden(name)
    events = engine_events(recorded)
    assert first_difference(events, recorded.events) is None
    assert peak_and_end(events) == peak_and_end(recorded.events)


def test_a_missing_event_is_a_difference():
    events = golden(NAMES[0]).events
    assert first_difference(events, events) is None
    assert first_difference(events[:40] + events[41:], events) is not None


def test_order_inside_a_run_of_frees_does_not_count():
    start = [(1, 0, 8), (1, 1, 16), (1, 2, 32)]
    assert (
        first_difference([*start, (-1, 0, 8), (-1, 1, 16)], [*start, (-1, 1, 16), (-1, 0, 8)])
        is None
    )
    moved = [*start[:2], (-1, 0, 8), start[2], (-1, 1, 16)]
    assert first_difference(moved, [*start, (-1, 0, 8), (-1, 1, 16)]) is not None
