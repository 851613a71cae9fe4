"""Writes docs/images: charts of real runs, as the commands of docs/charts.md make them.

python docs/make_images.py [MEASURED.json ...]: with outputs of `gpuledger emulate RUN --json` the
parity chart is drawn too. The measured timeline is that of tests/data/emulated_runs.
"""
from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

from gpuledger import __version__
from gpuledger.advice import changed
from gpuledger.cli.report import subjects_of
from gpuledger.compute.step_time.of_run import step_time
from gpuledger.config import RunOptions, load_run
from gpuledger.config.run import Run
from gpuledger.estimate import estimate
from gpuledger.files import write_whole
from gpuledger.report.build import Picture, Subject, build_report
from gpuledger.report.charts.pareto import Plan, pareto
from gpuledger.report.charts.parity import parity
from gpuledger.report.measured import read_measurement, steps_of
from gpuledger.report.pictures import picture

IMAGES = Path(__file__).parent / "images"
EMULATED = Path(__file__).parents[1] / "tests" / "data" / "emulated_runs" / "pythia-70m.json"
H100S = RunOptions(gpu="h100-80gb-sxm", gpus=8, recompute="full")


def main(measured: list[Path]) -> None:
    """All images."""
    IMAGES.mkdir(exist_ok=True)
    subjects = [replace(subject, label=f"ZeRO {stage}") for stage, subject in
                enumerate(subjects_of("llama-3-8b", H100S, ["zero=0..3"]))]
    report = build_report(subjects)
    for shown in report.pictures:
        write(shown, shown.name)
    for shown in report.runs[3].pictures:
        write(shown, shown.name.removeprefix("zero-3-"))
    write_whole(IMAGES / "readme.svg", report.pictures[0].files["svg"])
    write(measured_timeline(), "timeline_measured")
    write(plans_picture(subjects[3]), "pareto")
    if measured:
        footer = "measured: PyTorch 2.14 on the emulated GPU"
        pairs = [pair for path in measured for pair in read_measurement(path).pairs]
        write(picture(parity(pairs, footer)), "parity")


def measured_timeline() -> Picture:
    """An emulated step over the estimated one."""
    found = read_measurement(EMULATED)
    run = load_run(found.run)
    report = build_report([Subject(run.name, run, measured=steps_of(run, [found]))])
    return next(shown for shown in report.runs[0].pictures if shown.name.endswith("timeline"))


def plans_picture(subject: Subject) -> Picture:
    """Every ZeRO stage, recompute policy and micro-batch, each with its forecast step time."""
    plans = []
    for zero, recompute, micro in product((0, 1, 2, 3), ("none", {"every": 2}, "full"), (1, 2, 4)):
        run: Run = changed(subject.run, {
            "parallel.zero_stage": zero, "training.recompute": recompute,
            "training.micro_batch_size": micro, "training.global_batch_size": 32})
        memory = estimate(run).memory
        words = recompute if isinstance(recompute, str) else "every 2"
        plans.append(Plan(f"ZeRO {zero}, recompute {words}, micro-batch {micro}",
                          step_time(run).step_seconds, memory.device_used_bytes, memory.fits))
    capacity = subject.run.cluster.gpu.capacity_bytes
    return picture(pareto("llama-3-8b on 8 h100-80gb-sxm", plans, capacity,
                          f"gpuledger {__version__} · global batch 32 x 8,192 tokens · bf16-mixed "
                          "· allocated bytes · forecast step time", "pareto"))


def write(shown: Picture, name: str) -> None:
    write_whole(IMAGES / f"{name}.png", shown.files["png"])


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
