"""`request_files`: everything that is submitted, by file name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...compute.step_time.of_run import StepTime
from ...errors import InputError, Problem
from ...estimate import Estimate
from ...report.run_file import run_file
from . import deepspeed, kubernetes, slurm, torchtitan
from .launchers import launch_script, launcher_of
from .options import RequestOptions
from .proposal import proposal
from .resources import resources


def request_files(estimate: Estimate, time: StepTime, options: RequestOptions) -> dict[str, str]:
    """Texts by file name, all for one folder: run.yaml, launch.sh, request.md, the launcher's own
    file, and a job for each scheduler.

    Raises InputError where a launcher or scheduler cannot express the run.
    """
    run = estimate.run
    account, launcher = resources(estimate, time, options), launcher_of(run, options)
    files = {"run.yaml": run_file(run), "launch.sh": launch_script(run, options, account)}
    if run.parallel.framework == "deepspeed":
        files[deepspeed.CONFIG_NAME] = deepspeed.ds_config_text(run)
    if launcher == "torchtitan":
        files[torchtitan.CONFIG_NAME] = torchtitan.job_config_text(run, options, account)
    if "slurm" in options.schedulers:
        files[slurm.NAME] = slurm.slurm_script(run, options, account)
        if account.jobs > 1:
            files["submit.sh"] = slurm.submit_script(run, account)
    if "kubernetes" in options.schedulers:
        files[kubernetes.NAME] = kubernetes.kubernetes_job(run, options, account, files)
    files["request.md"] = proposal(estimate, time, options, account)
    return files


@dataclass(frozen=True)
class Chosen:
    """The first of several plans that can be submitted. number: its index.

    passed_over: index and first problem of each better one that no launcher can express.
    """

    number: int
    files: dict[str, str]
    passed_over: tuple[tuple[int, Problem], ...]


def first_request(plans: Sequence[tuple[Estimate, StepTime]], options: RequestOptions) -> Chosen:
    """The request of the best plan that can be launched, best first.

    Raises InputError with the problems of the best one where none can.
    """
    refused: list[InputError] = []
    for number, (estimate, time) in enumerate(plans):
        try:
            files = request_files(estimate, time, options)
        except InputError as refusal:
            refused.append(refusal)
            continue
        return Chosen(number, files, tuple((i, error.problems[0]) for i, error in enumerate(refused)))
    raise refused[0] if refused else InputError("there is no plan to request", "ask for a plan that fits")
