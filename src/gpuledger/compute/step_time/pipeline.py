"""Pipeline schedules: the bubble of each, and the messages between stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import InputError
from .arithmetic import Number, both, maximum, where
from .inputs import Decoder, Layout


@dataclass(frozen=True)
class StageSeconds:
    """One micro-batch through all layers of one stage: forward, the input's and the weight's
    gradient.

    What cannot be split (collectives of the backward pass, recompute) counts as input gradient.
    """

    forward: Number
    input_gradient: Number
    weight_gradient: Number

    @property
    def total(self) -> Number:
        return self.forward + self.input_gradient + self.weight_gradient


def one_forward_one_backward(stage: StageSeconds, pp: Number, vpp: Number) -> Number:
    """GPipe and 1F1B: (p - 1)(F + B + W); they differ in memory, not in time. [T12]"""
    return (pp - 1) * stage.total


def interleaved(stage: StageSeconds, pp: Number, vpp: Number) -> Number:
    """v chunks on each stage: (p - 1)(F + B + W) / v. [T12]"""
    return (pp - 1) * stage.total / vpp


def zb_h1(stage: StageSeconds, pp: Number, vpp: Number) -> Number:
    """Weight gradients fill the drain, with 1F1B's memory: (p - 1)(F + B - W). [T13]"""
    return (pp - 1) * maximum(stage.forward + stage.input_gradient - stage.weight_gradient, 0.0)


def zb_h2(stage: StageSeconds, pp: Number, vpp: Number) -> Number:
    """Twice the activations of 1F1B: (p - 1) max(F + B - 2 W, 0). [T13]"""
    return (pp - 1) * maximum(stage.forward + stage.input_gradient - 2 * stage.weight_gradient, 0.0)


def zb_v(stage: StageSeconds, pp: Number, vpp: Number) -> Number:
    """Two chunks in a V, with 1F1B's memory: no bubble where F = B = W; else ZB-H2's as a bound.
    [T13]"""
    return zb_h2(stage, pp, vpp)


def dualpipe(stage: StageSeconds, pp: Number, vpp: Number) -> Number:
    """Both directions at once, with two copies of the parameters: (p/2 - 1)(F + 2 B' - 3 W), where
    B' = B + W and a forward overlapped with a backward takes their sum. [T14]"""
    backward = stage.input_gradient + stage.weight_gradient
    rest = stage.forward + 2 * backward - 3 * stage.weight_gradient
    return maximum(pp / 2 - 1, 0.0) * maximum(rest, 0.0)


SCHEDULES: dict[str, Callable[[StageSeconds, Number, Number], Number]] = {
    "1f1b": one_forward_one_backward,
    "gpipe": one_forward_one_backward,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
}


def bubble_seconds(schedule: str, stage: StageSeconds, pp: Number, vpp: Number) -> Number:
    """Seconds of a step in which a stage waits for others. Raises InputError for an unknown
    schedule."""
    if schedule not in SCHEDULES:
        raise InputError(
            f"there is no pipeline schedule {schedule!r}", f"use one of {', '.join(SCHEDULES)}"
        )
    return SCHEDULES[schedule](stage, pp, vpp)


def layers_of_stage(decoder: Decoder, layout: Layout) -> tuple[Number, Number]:
    """Layers of a middle stage, and whether first and last stage are one layer short. [T15]

    A stack that divides only with two layers more leaves room for embedding and head, as Megatron
    and Zero Bubble do it. Otherwise the layers are spread evenly, in fractions where they do not
    divide.
    """
    L, p = decoder.num_layers, layout.pp
    short = both(L % p != 0, (L + 2) % p == 0)
    return (L + 2 * short) / p, short


def slowest_stage_seconds(stage: Number, layer: Number, head: Number, short: Number) -> Number:
    """The stage that every micro-batch waits for: the last one with the head, or a middle one where
    the last is a layer short. [T15]"""
    return where(short, maximum(stage, stage - layer + head), stage + head)
