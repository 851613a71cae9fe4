"""The stream that the allocator model replays."""
from __future__ import annotations

import pytest

from gpuledger.config import RunOptions, resolve_run
from gpuledger.estimate import device_of
from gpuledger.memory.replayed import STEPS, _events
from gpuledger.memory.run import whole_run
from gpuledger.program.model import build


@pytest.mark.parametrize("settings", [
    (), ("optimizer=adafactor", "gradient_clipping=true"), ("precision=fp16-mixed", "loss=chunked"),
    ("set_to_none=false", "global_batch_size=2"), ("recompute=full", "optimizer=muon")])
def test_a_step_that_is_repeated_is_what_walking_it_again_gives(settings):
    options = RunOptions(gpu="h100", gpus=1, seq_len=128, set=("model.num_layers=2", *settings))
    run, _ = resolve_run("gpt2", options)
    program = build(run.model, run.training, device_of(run))
    walked = whole_run(run, program, STEPS).memory.events
    replayed = _events(whole_run(run, program, 1))
    assert [(sign, nbytes) for sign, _, nbytes in replayed] == [
        (sign, nbytes) for sign, _, nbytes in walked]
