"""Runs measured on a real GPU, or in a rehearsal on an emulated one, beside their estimates.

Imports no torch: every run is measured in a process of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.compute.counted_flops import counted_flops
from gpuledger.compute.mfu import Measured, mfu_report
from gpuledger.config.cluster import DensePeaks, Gpu
from gpuledger.config.load import load_gpu
from gpuledger.config.presets import list_presets
from gpuledger.config.run import Run
from gpuledger.errors import GpuledgerError, InputError, NotYetError
from gpuledger.estimate import refuse_unmodelled
from gpuledger.report.reconciliation_json import reconciliation_content

from .child import Measurer, Options, environment_of, require_torch
from .reconcile import measured_device, reconcile

SCHEMA_VERSION = 1
LIMIT_SECONDS = 300.0                       # one run; then it is killed, which is a result too
TIMED_STEPS = 10
OPTIONS = Options(timed_steps=TIMED_STEPS, flops=True)


@dataclass(frozen=True)
class Bench:
    """A device to measure on: the emulated GPU that a record describes, or this machine's."""

    gpu: Gpu
    emulated: bool
    environment: Mapping[str, str]


def emulated_bench(gpu: Gpu) -> Bench:
    """For rehearsals. Raises InputError as gpuledger.torch_runs.child.measure_emulated."""
    require_torch("validate")
    return Bench(gpu, True, environment_of(gpu))


def real_bench(measurer_environment: Mapping[str, str] | None = None) -> Bench:
    """This machine's first visible GPU, as a preset where one has its name.

    Raises:
        InputError: PyTorch is not installed, or sees no CUDA device.
    """
    require_torch("validate")
    environment = dict(measurer_environment or os.environ)
    with Measurer(environment, LIMIT_SECONDS) as measurer:
        device = measurer.probe()
    return Bench(gpu_named(device), False, environment)


def gpu_named(device: Mapping[str, Any]) -> Gpu:
    """The preset of this name and nearest memory; else what PyTorch says, without peaks."""
    presets = [load_gpu(name) for name in list_presets("gpus")]
    named = [gpu for gpu in presets if gpu.full_name == device["name"]]
    if named:
        gpu = min(named, key=lambda gpu: abs(gpu.capacity_bytes - device["total_bytes"]))
        seen = {"num_sms": device["num_sms"], "torch_visible_bytes": device["total_bytes"]}
        return gpu.model_copy(update=seen)
    return Gpu(name=device["name"], full_name=device["name"], vendor="nvidia",
               capability=device["capability"], num_sms=device["num_sms"],
               memory_bytes=device["total_bytes"], dense_peak_flops_per_second=DensePeaks(),
               sources={"all": "torch.cuda.get_device_properties"})


def on_bench(run: Run, bench: Bench) -> Run:
    """The run on the GPU that it will be measured on; the number of GPUs stays."""
    cluster = run.cluster.model_copy(update={"gpu": bench.gpu})
    return run.model_copy(update={"cluster": cluster})


def validate(run: Run, bench: Bench, measurer: Measurer) -> dict[str, Any]:
    """One run, measured and reconciled: a JSON object with the whole of both.

    What goes wrong in the measuring process is an outcome: "out of memory", or "failed" with the
    error.
    """
    run = on_bench(run, bench)
    begin = time.time()
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION, "name": run.name, "run": run.model_dump(mode="json"),
        "emulated": bench.emulated, "started_at_unix_seconds": int(begin)}
    try:
        report = measurer.measure(run, OPTIONS)
    except GpuledgerError as error:
        problem = error.problems[0]
        result |= {"outcome": "refused" if isinstance(error, InputError) else "failed",
                   "error": problem.message, "hint": problem.hint}
    else:
        result |= compared(run, report)
    return result | {"seconds": round(time.time() - begin, 2)}


def compared(run: Run, report: dict[str, Any]) -> dict[str, Any]:
    """The measurement, and the estimate beside it where the run did not run out of memory."""
    kept = {key: value for key, value in report.items() if key not in ("run", "schema_version")}
    if report["outcome"] != "ok":
        return kept
    result = {**kept, "memory": reconciliation_content(reconcile(run, report)),
              "not_modelled": not_modelled(run)}
    if "flops" in report:
        device = measured_device(report)
        estimated = counted_flops(run.model, run.training, run.num_microbatches, device)
        result["flops"] = {**report["flops"], "estimated_total": estimated}
    if report.get("time"):
        result["utilization"] = utilization(run, report["time"]["median_seconds"])
    return result


def not_modelled(run: Run) -> list[str]:
    """What the estimate leaves out, one line each: a framework's buffers, for example."""
    try:
        refuse_unmodelled(run)
    except NotYetError as error:
        return [problem.message for problem in error.problems]
    return []


def utilization(run: Run, step_seconds: float) -> dict[str, Any] | None:
    """MFU and HFU by convention, of one GPU; None where the GPU's peak is not known.

    A rank's step is timed, so the run's tokens per second are those of all ranks at this pace.
    """
    try:
        report = mfu_report(run, Measured(step_seconds=step_seconds))
    except InputError:
        return None
    return {
        "dense_peak_flops_per_second": report.dense_peak_flops_per_second, "dtype": report.dtype,
        "tokens_per_second_per_gpu": report.tokens_per_second_per_gpu,
        "by_convention": {row.convention: {"mfu": row.mfu, "hfu": row.hfu} for row in report.rows},
    }
