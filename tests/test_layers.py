"""Layers walked once give what the full walk gives."""
from __future__ import annotations

import pytest

from drawn_runs import on_ranks, random_run, with_settings
from gpuledger.config import Run
from gpuledger.memory import peak as peak_module
from gpuledger.memory.layers import Walk, plan_walk
from gpuledger.memory.peak import Peak, StepPeak
from gpuledger.program.device import Device


def full_walk(run: Run, monkeypatch: pytest.MonkeyPatch) -> Peak:
    layers = run.model.num_layers
    with monkeypatch.context() as patch:
        patch.setattr(peak_module, "plan_walk", lambda *_: Walk(layers, (layers, layers), 0))
        return StepPeak(run, Device()).find()


def totals(peak: Peak) -> dict[str, int]:
    return {name: peak.category_bytes(name)
            for name in ("parameters", "gradients", "optimizer", "activations", "buffers")}


@pytest.mark.parametrize("seed", range(40))
def test_shallow_walk_equals_full_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = random_run(seed, model__num_layers=6 + seed % 17)
    if run.training.optimizer not in ("muon", "adafactor"):
        run = on_ranks(run, 1 + seed % 3, seed % 4)
    shallow, full = StepPeak(run, Device()).find(), full_walk(run, monkeypatch)
    assert shallow.requested_bytes == full.requested_bytes
    assert totals(shallow) == totals(full)
    assert sum(totals(shallow).values()) == shallow.requested_bytes


def test_walk_of_uniform_layers_has_five() -> None:
    run = random_run(0, model__num_layers=32, model__sliding_window=None,
                     model__full_attention_interval=None, training__recompute="none")
    assert plan_walk(run.model, run.training) == Walk(5, (2, 3), 27)


def test_walk_keeps_the_pattern_of_recompute() -> None:
    run = random_run(0, model__num_layers=33, model__sliding_window=None,
                     model__full_attention_interval=None, training__recompute={"every": 2})
    walk = plan_walk(run.model, run.training)
    assert walk == Walk(9, (3, 5), 12)
    assert [walk.model_layer(i) for i in range(9)] == [0, 1, 2, 3, 4, 29, 30, 31, 32]


def test_shallow_models_are_walked_whole() -> None:
    run = random_run(0, model__num_layers=5, training__recompute="none", model__sliding_window=None,
                     model__full_attention_interval=None)
    assert plan_walk(run.model, run.training) == Walk(5, (5, 5), 0)


def test_deeper_is_never_smaller() -> None:
    run = random_run(3)
    peaks = [StepPeak(with_settings(run, model__num_layers=n), Device()).find().requested_bytes
             for n in (2, 8, 9, 40)]
    assert peaks == sorted(peaks)
