"""Rules of the engine taken out one at a time: the recorded streams must notice each.

A comparison of peaks alone would not: most rules move bytes away from the peak.
"""
from __future__ import annotations

import pytest

from golden_streams import NAMES, golden
from gpuledger.memory import autograd as autograd_module
from gpuledger.memory import timeline as timeline_module
from gpuledger.memory.autograd import Buffer
from gpuledger.memory.run import steady_step
from gpuledger.memory.timeline import Timeline
from gpuledger.program import layout, operators
from gpuledger.program.model import Program, build
from gpuledger.program.program import Tape
from gpuledger.torch_runs.self_check.compare import first_difference


def streams_noticed() -> int:
    """How many recorded streams the engine, as it is now, does not reproduce."""
    noticed = 0
    for name in NAMES:
        recorded = golden(name)
        run = recorded.run
        program = build(run.model, run.training, recorded.device)
        try:
            events = steady_step(program, run.training, run.num_microbatches).memory.events
        except (KeyError, ValueError, IndexError):
            noticed += 1
            continue
        noticed += first_difference(events, recorded.events) is not None
    return noticed


def without_arguments(monkeypatch):
    """A call does not hold its arguments (checkpoints do)."""
    whole = operators.Tape.part

    def part(self, name, *arguments, checkpoint=False, **options):
        return whole(
            self, name, *(arguments if checkpoint else ()), checkpoint=checkpoint, **options
        )

    monkeypatch.setattr(Tape, "part", part)


def without_locals(monkeypatch):
    """A call does not hold its named locals."""
    monkeypatch.setattr(Tape, "hold", lambda self, *tensors: None)


def without_cache(monkeypatch):
    """Autocast casts a weight for each product and keeps nothing."""
    monkeypatch.setattr(Tape, "hold_in_autocast_cache", lambda self, tensor: None)


def casts_first_to_last(monkeypatch):
    """Autocast casts an operator's arguments in the order in which they are written."""
    def autocast(tape, *tensors):
        if not tape.precision.autocast:
            return list(tensors)
        casts = [t and operators.cast(tape, t, tape.precision.compute_dtype) for t in tensors]
        tape.hold(*(t for t in casts if t is not None))
        return casts

    monkeypatch.setattr(operators, "autocast", autocast)


def adds_to_views(monkeypatch):
    """Gradients are added in place to views too."""
    class Owned(Buffer):
        def __init__(self, number, is_view, strides=None):
            super().__init__(number, False, strides)

    monkeypatch.setattr(autograd_module, "Buffer", Owned)


def never_adds_in_place(monkeypatch):
    """Two gradients always need a third buffer."""
    monkeypatch.setattr(autograd_module, "dense", lambda shape, strides: False)


def no_early_stop(monkeypatch):
    """A recomputed part runs to its end."""
    def recompute(self, region):
        self.recomputed.add(region)
        for step in timeline_module.schedule(region):
            self.run(step.op, saving=not step.op.only_recomputed)
            self.release(step.releases)

    monkeypatch.setattr(Timeline, "recompute", recompute)


def parameters_last(monkeypatch):
    """Parameters receive their gradients after all activations."""
    whole = Timeline.hand_over

    def hand_over(self):
        self.outgoing = dict(sorted(self.outgoing.items(), key=lambda item: item[0].parameter))
        whole(self)

    monkeypatch.setattr(Timeline, "hand_over", hand_over)


def all_layouts_contiguous(monkeypatch):
    """Every tensor lies in memory in the order of its dims: no copies."""
    monkeypatch.setattr(layout, "normal", lambda shape, strides: None)


def unscaled_loss(monkeypatch):
    """No loss scaling in fp16."""
    monkeypatch.setattr(Program, "backward_from", property(lambda self: self.loss))


RULES = (without_arguments, without_locals, without_cache, casts_first_to_last, adds_to_views,
         never_adds_in_place, no_early_stop, parameters_last, all_layouts_contiguous, unscaled_loss)


def test_all_rules_together():
    assert streams_noticed() == 0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_missing_rule_is_noticed(rule, monkeypatch):
    rule(monkeypatch)
    assert streams_noticed() > 0
