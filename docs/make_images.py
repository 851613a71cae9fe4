"""Writes docs/images: charts of real runs, as the commands of docs/charts.md make them.

python docs/make_images.py [MEASURED.json ...]: with outputs of `gpuledger emulate RUN --json` the
parity chart is drawn too. The measured timeline is that of tests/data/emulated_runs.
"""
from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gpuledger.cli.report import subjects_of
from gpuledger.config import RunOptions, load_run
from gpuledger.files import write_whole
from gpuledger.planner.ask import Wishes, question_of
from gpuledger.planner.plan import plan
from gpuledger.report.build import Picture, Subject, build_report
from gpuledger.report.charts.parity import parity
from gpuledger.report.measured import read_measurement, steps_of
from gpuledger.report.pictures import picture
from gpuledger.report.plan_chart import plan_chart

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
    write(plans_picture(), "pareto")
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


def plans_picture() -> Picture:
    """The first story of docs/plans.md."""
    options = RunOptions(gpu="h100-80gb-sxm", global_batch=1024)
    question, _ = question_of("llama-2-7b", options, Wishes(gpus="8", tokens="100B"))
    return picture(plan_chart(plan(question)))


def write(shown: Picture, name: str) -> None:
    write_whole(IMAGES / f"{name}.png", shown.files["png"])


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
