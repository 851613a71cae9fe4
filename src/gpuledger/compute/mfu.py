"""From a measured throughput to model and hardware FLOPs utilization, under every convention."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ..config.cluster import Gpu
from ..config.run import Run
from ..config.training import Precision
from ..errors import InputError
from .convention_formulas import CONVENTIONS
from .conventions import DEFAULT_CONVENTION, find_convention, sequence_flops
from .products import DTYPE_OF_PRODUCTS
from .sequence_flops import paper_selective_rerun_flops, rerun_flops


@dataclass(frozen=True)
class Measured:
    """What was measured: exactly one of the three.

    tokens_per_second: of the whole run. tokens_per_second_per_gpu: of one GPU. step_seconds: one
    optimizer step, gradient accumulation included.
    """

    tokens_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None
    step_seconds: float | None = None

    def per_gpu(self, run: Run) -> float:
        """Tokens per second and GPU. Raises InputError unless one positive number is given."""
        given: dict[str, float] = {
            name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            raise InputError(
                f"{len(given)} measurements given ({', '.join(given) or 'none'}), one is needed",
                f"give one of {', '.join(vars(self))}")
        [(name, value)] = given.items()
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} = {value} is not a measurement", "give a number above 0")
        if name == "tokens_per_second_per_gpu":
            return value
        tokens = run.training.tokens_per_step
        return (value if name == "tokens_per_second" else tokens / value) / run.cluster.gpus


@dataclass(frozen=True)
class Utilization:
    """One convention's view of a measured throughput. MFU and HFU are fractions of the peak."""

    convention: str
    model_flops_per_token: int
    flops_per_second_per_gpu: float
    mfu: float
    hfu: float
    """With what the run's recompute policy runs again, by the rule "whole block"."""
    hfu_paper: float | None
    """Selective recompute only: HFU as published, which doubles the attention core."""
    attention_share: float
    """Share of the attention cores in the model FLOPs."""


@dataclass(frozen=True)
class MfuReport:
    """A measured throughput under all conventions; the chosen one comes first in `rows`."""

    tokens_per_second_per_gpu: float
    gpus: int
    gpu: str
    dtype: str
    dense_peak_flops_per_second: float
    rows: tuple[Utilization, ...]
    warnings: tuple[str, ...]


def dense_peak(gpu: Gpu, precision: Precision) -> tuple[str, float]:
    """The datatype of a precision's products and the GPU's dense peak in it, FLOP/s.

    Raises InputError where the peak is not known: no other GPU's or datatype's is taken for it.
    """
    dtype = DTYPE_OF_PRODUCTS[precision]
    peak: float | None = getattr(gpu.dense_peak_flops_per_second, dtype)
    if peak is None:
        raise InputError(
            f"the dense {dtype} peak of {gpu.name} is not known, so there is no MFU",
            f"set dense_peak_flops_per_second.{dtype} of the GPU, in FLOP/s and without sparsity")
    return dtype, peak


def mfu_report(run: Run, measured: Measured, convention: str = DEFAULT_CONVENTION) -> MfuReport:
    """MFU and HFU of a measured run under every convention.

    MFU = model FLOPs per token x tokens per second and GPU / dense peak of one GPU; HFU takes the
    FLOPs that recompute runs again as well. [F12] Raises InputError for an unknown convention or
    peak, and for a measurement that is none.
    """
    first = find_convention(convention).name
    tokens_per_second = measured.per_gpu(run)
    dtype, peak = dense_peak(run.cluster.gpu, run.training.precision)
    names = [first, *(name for name in CONVENTIONS if name != first)]
    rows = tuple(_utilization(run, name, tokens_per_second, peak) for name in names)
    return MfuReport(
        tokens_per_second_per_gpu=tokens_per_second, gpus=run.cluster.gpus,
        gpu=run.cluster.gpu.name, dtype=dtype, dense_peak_flops_per_second=peak,
        rows=rows, warnings=_warnings(rows))


def _utilization(run: Run, convention: str, tokens_per_second: float, peak: float) -> Utilization:
    s, recompute = run.training.seq_len, run.training.recompute
    flops = sequence_flops(run.model, s, convention)

    def rate(flops_per_sequence: int) -> float:
        return flops_per_sequence / s * tokens_per_second

    hardware = flops.total + rerun_flops(run.model, flops, recompute)
    paper = flops.total + paper_selective_rerun_flops(flops)
    return Utilization(
        convention=convention,
        model_flops_per_token=flops.total // s,
        flops_per_second_per_gpu=rate(flops.total),
        mfu=rate(flops.total) / peak,
        hfu=rate(hardware) / peak,
        hfu_paper=rate(paper) / peak if recompute == "selective" else None,
        attention_share=flops.attention_share)


def _warnings(rows: tuple[Utilization, ...]) -> tuple[str, ...]:
    """A utilization above 1 is impossible: the input is wrong or the convention overcounts."""
    over = [row.convention for row in rows if row.mfu > 1]
    if not over:
        return ()
    by_name = {row.convention: row for row in rows}
    if by_name["exact"].mfu > 1:
        return (f"MFU is {100 * by_name['exact'].mfu:.1f} % even by the exact count: "
                "the throughput, the number of GPUs or the peak is wrong",)
    return (f"MFU is above 100 % under {', '.join(over)}: what these count is not all computed "
            "(attention under the mask, lookups)",)
