"""job.sbatch and submit.sh: the run as a Slurm job, or as a chain of jobs.

Ref: sbatch(1), srun(1) of Slurm 25.05; torchrun's rendezvous (docs.pytorch.org/docs/stable/elastic/run.html).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...config.run import Run
from .launchers import exports, gpus_of_node, job_name_of, launch_words, program_words
from .options import RequestOptions
from .resources import Resources
from .words import Shell, command, one_line

NAME = "job.sbatch"
HEAD = """#!/bin/bash
# {title}: {gpus} GPUs on {nodes} node{s}, {steps:,} steps{part}.
{directives}

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"

# Since Slurm 22.05 srun does not inherit --cpus-per-task.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# {stop} s before the end Slurm signals this script, which tells the run to save and leave.
stopped=0
stop() {{
    stopped=1
    kill -TERM "$step" 2>/dev/null || true
}}
step=
trap stop USR1

{exports}{launch} &
step=$!
status=0
wait "$step" || status=$?
if [ "$stopped" = 1 ]; then
    wait "$step" || true
    echo "the time is up: the next job resumes from the last checkpoint"
    exit 0
fi
exit "$status"
"""
CHAIN = """#!/bin/bash
# {title}: {jobs} jobs, each after the one before it has ended well.
# A job that fails ends the chain; each one resumes from the last checkpoint.
set -euo pipefail
cd "$(dirname "$0")"

previous=$(sbatch --parsable {name})
previous=${{previous%%;*}}
echo "$previous"
for _ in $(seq 2 {jobs}); do
    previous=$(sbatch --parsable --dependency="afterok:$previous" --kill-on-invalid-dep=yes {name})
    previous=${{previous%%;*}}
    echo "$previous"
done
"""


def slurm_script(run: Run, options: RequestOptions, resources: Resources) -> str:
    """The batch script of one job."""
    nodes, jobs = run.cluster.num_nodes, resources.jobs
    return HEAD.format(
        title=one_line(run.name), gpus=run.cluster.gpus, nodes=nodes, s="s" if nodes > 1 else "",
        steps=resources.steps, part=f" in {jobs} such jobs: see submit.sh" if jobs > 1 else "",
        directives="\n".join(f"#SBATCH --{line}" for line in directives(run, options, resources)),
        stop=options.stop_seconds, exports=exports(run), launch=launch(run, options, resources))


def directives(run: Run, options: RequestOptions, resources: Resources) -> Iterator[str]:
    """Options of sbatch; none of them needs quotes."""
    gpus, whole = gpus_of_node(run), run.cluster.gpus >= run.cluster.gpus_per_node
    yield f"job-name={job_name_of(run, options)}"
    for name in ("partition", "account", "qos"):
        if getattr(options, name) is not None:
            yield f"{name}={getattr(options, name)}"
    yield f"nodes={run.cluster.num_nodes}"
    yield "ntasks-per-node=1"
    yield f"gpus-per-node={gpus}"
    yield f"cpus-per-task={options.cpus_per_gpu * gpus}"
    if whole:
        yield "exclusive"
        yield "mem=0"
    yield f"time={slurm_time(resources.job_seconds)}"
    yield f"signal=B:USR1@{options.stop_seconds}"
    yield "requeue"
    yield "open-mode=append"
    yield "output=%x-%j.out"


def slurm_time(seconds: float) -> str:
    """days-hours:minutes:seconds, rounded up to a whole minute as Slurm does. [R11]"""
    minutes = max(1, math.ceil(seconds / 60))
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:00"


def launch(run: Run, options: RequestOptions, resources: Resources) -> str:
    """One task per node: torchrun, which starts a process per GPU."""
    rendezvous = [Shell('--rdzv-id="$SLURM_JOB_ID"'), "--rdzv-backend=c10d",
                  Shell(f'--rdzv-endpoint="${{nodes[0]}}:{options.port}"')]
    words = launch_words(run, options, program_words(run, options, resources), rendezvous)
    # --kill-on-bad-exit: a node that dies ends the step at once; the others would wait for it
    return command([Shell("srun --kill-on-bad-exit=1"), *words])


def submit_script(run: Run, resources: Resources) -> str:
    """The chain."""
    return CHAIN.format(title=one_line(run.name), jobs=resources.jobs, name=NAME)
