"""`request_files`: everything that is submitted, by file name."""

from __future__ import annotations

from ...compute.step_time.of_run import StepTime
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
