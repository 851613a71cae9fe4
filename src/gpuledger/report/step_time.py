"""The step time of an estimate, as JSON content and as two lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..compute.step_time.of_run import StepTime, step_time
from ..errors import InputError

if TYPE_CHECKING:
    from ..estimate import Estimate, Flops


def time_content(estimate: Estimate) -> dict[str, Any]:
    """The `time` section: seconds per term, which add up to step_seconds; null where not known."""
    content: dict[str, Any] = dict.fromkeys(
        (
            "step_seconds",
            "tokens_per_second_per_gpu",
            "mfu",
            "hfu",
            "breakdown",
            "error_range",
            "assumptions",
            "unknown_because",
        )
    )
    content["at_peak_seconds"] = at_peak_seconds(estimate)
    try:
        time = step_time(estimate.run)
    except InputError as refusal:
        return content | {"unknown_because": refusal.problems[0].message}
    mfu, hfu = utilization(estimate, time)
    parts, error = time.breakdown, time.error
    return content | {
        "step_seconds": time.step_seconds,
        "tokens_per_second_per_gpu": time.tokens_per_second_per_gpu,
        "mfu": mfu,
        "hfu": hfu,
        "breakdown": {
            "compute": parts.compute,
            "exposed_communication": parts.exposed_communication,
            "bubble": parts.bubble,
            "optimizer": parts.optimizer,
            "terms": {name: float(value) for name, value in parts.terms.items()},
        },
        "error_range": {
            "family": error.family,
            "calibrated": error.calibrated,
            "n": error.n,
            "bias": error.bias,
            "low": error.low,
            "high": error.high,
            "low_seconds": error.low_seconds,
            "high_seconds": error.high_seconds,
        },
        "assumptions": list(time.assumptions),
    }


def at_peak_seconds(estimate: Estimate) -> float | None:
    """Seconds of a step if every GPU ran at its dense peak: a bound, no forecast."""
    flops = estimate.flops
    if flops.peak_flops_per_second is None:
        return None
    return flops.hardware_flops_per_step / (flops.peak_flops_per_second * estimate.run.cluster.gpus)


def utilization(estimate: Estimate, time: StepTime) -> tuple[float | None, float | None]:
    """MFU and HFU of the forecast step by the estimate's convention; None without a peak. [F12]"""
    flops: Flops = estimate.flops
    if flops.peak_flops_per_second is None:
        return None, None
    possible = time.step_seconds * flops.peak_flops_per_second * estimate.run.cluster.gpus
    return flops.model_flops_per_step / possible, flops.hardware_flops_per_step / possible


def time_lines(estimate: Estimate) -> list[str]:
    """Seconds with throughput and utilization, then the error range and where the time goes."""
    try:
        time = step_time(estimate.run)
    except InputError as refusal:
        return [f"step time is not known: {refusal.problems[0].message}"]
    mfu, hfu = utilization(estimate, time)
    share = f", MFU {100 * mfu:.1f} %, HFU {100 * hfu:.1f} %" if mfu and hfu else ""
    error = time.error
    between = ""
    if error.low_seconds is not None and error.high_seconds is not None:
        between = f" ({error.low_seconds:.3g} to {error.high_seconds:.3g} s)"
    parts = time.breakdown
    named = {
        "compute": parts.compute,
        "communication": parts.exposed_communication,
        "bubble": parts.bubble,
        "optimizer": parts.optimizer,
    }
    where = ", ".join(
        f"{name} {100 * value / time.step_seconds:.1f} %" for name, value in named.items() if value
    )
    return [
        f"step time {time.step_seconds:.3g} s{between}: "
        f"{time.tokens_per_second_per_gpu:,.0f} tokens/s/GPU{share}",
        f"{where}; {error.text}",
    ]
