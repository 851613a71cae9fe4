"""How far this model was off on published steps of the same family of hardware and software."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.run import Run
from .curves import architecture_of, data

SOFTWARE_FAMILY = {
    "megatron-2021": "Megatron",
    "megatron-deepspeed": "Megatron",
    "megatron-deepspeed-bf16": "Megatron",
    "megatron-core": "Megatron",
    "nanotron": "Megatron",
    "torch-eager": "PyTorch",
    "torch-compiled": "PyTorch",
}
SHOWN = {"ampere": "A100", "hopper": "H100", "blackwell": "B200"}


@dataclass(frozen=True)
class ErrorRange:
    """Errors of predicted seconds over measured ones, minus 1; None where nothing was published.

    low and high are the 5th and 95th percentile, bias the mean; negative reads too fast. The
    seconds are what a step then takes: predicted / (1 + error).
    """

    family: str
    calibrated: bool
    n: int
    bias: float | None = None
    low: float | None = None
    high: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None

    @property
    def text(self) -> str:
        """One sentence for the reader."""
        if self.calibrated:
            return (
                "measured efficiencies are in use; how far calibrated steps are off was not scored"
            )
        if self.bias is None or self.low is None or self.high is None:
            return f"{self.family}: no published step to compare with, so the error is not known"
        lean = ""
        if self.high < 0.05 and self.bias < -0.05:
            lean = f" and reads too fast, by {-100 * self.bias:.0f} % on average"
        return (
            f"{self.family}: off by {100 * self.low:+.0f} to {100 * self.high:+.0f} % on "
            f"{self.n} published steps{lean}"
        )


def family_of(architecture: str, profile: str, dtype: str) -> str:
    """The family of a row or run: "H100, PyTorch, 16 bit"."""
    bits = "fp8" if dtype == "fp8" else "16 bit" if dtype in ("bf16", "fp16") else dtype
    return f"{SHOWN.get(architecture, 'other GPUs')}, {SOFTWARE_FAMILY[profile]}, {bits}"


def error_range(run: Run, profile: str, step_seconds: float) -> ErrorRange:
    """The range of the run's family, as benchmarks/step_time/evaluate.py measured it. [T26]"""
    from ..products import DTYPE_OF_PRODUCTS

    gpu = run.cluster.gpu
    family = family_of(architecture_of(gpu), profile, DTYPE_OF_PRODUCTS[run.training.precision])
    if gpu.efficiency is not None and gpu.efficiency.best_matmul_flops_per_second:
        return ErrorRange(family, calibrated=True, n=0)
    known = data("error_ranges")["families"].get(family)
    if known is None:
        return ErrorRange(family, calibrated=False, n=0)
    low, high = known["low"], known["high"]
    return ErrorRange(
        family,
        False,
        known["n"],
        known["bias"],
        low,
        high,
        low_seconds=step_seconds / (1 + high),
        high_seconds=step_seconds / (1 + low),
    )
