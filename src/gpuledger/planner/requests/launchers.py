"""The command that starts the script: plain python, torchrun, or DeepSpeed's launcher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...config.run import Run
from ...errors import InputError
from .deepspeed import CONFIG_NAME as DEEPSPEED_CONFIG
from .megatron import SCRIPT as MEGATRON_SCRIPT
from .megatron import megatron_words
from .options import Launcher, RequestOptions, label
from .resources import Resources
from .torchtitan import CONFIG_NAME as TORCHTITAN_CONFIG
from .words import Shell, Start, command, one_line, recompute_text

# Launchers that can start a run of each framework; the first is taken where nobody says.
LAUNCHERS: dict[str | None, tuple[Launcher, ...]] = {
    "single": ("python",),
    "dataparallel": ("python",),
    "ddp": ("torchrun",),
    "zero-redundancy-optimizer": ("torchrun",),
    "fsdp1": ("torchrun",),
    "fsdp2": ("torchrun", "torchtitan"),
    "deepspeed": ("deepspeed", "torchrun"),
    "megatron": ("megatron",),
}
LAUNCH_HEAD = """#!/bin/bash
# {name}: {gpus} GPUs on {nodes}.
{usage}
set -euo pipefail
"""


def launcher_of(run: Run, options: RequestOptions) -> Launcher:
    """Who starts the script. Raises InputError where that is not known or cannot be."""
    framework = run.parallel.framework
    if framework is None and run.cluster.gpus > 1:
        raise InputError(f"no framework is named, so nothing can be launched on {run.cluster.gpus} GPUs",
                         "set parallel.framework, for example fsdp2")
    able = LAUNCHERS.get(framework, ("python",))
    chosen = options.launcher or able[0]
    if chosen not in able:
        raise InputError(f"launcher: {chosen} does not start framework {framework}",
                         f"use {' or '.join(able)}")
    if framework == "dataparallel" and run.cluster.num_nodes > 1:
        raise InputError(f"DataParallel is one process, but the run has {run.cluster.num_nodes} nodes",
                         "set framework: ddp")
    return chosen


def gpus_of_node(run: Run) -> int:
    """GPUs of each node."""
    return min(run.cluster.gpus, run.cluster.gpus_per_node)


def program_words(run: Run, options: RequestOptions, resources: Resources, folder: str = ""
                  ) -> list[str]:
    """The script and all its arguments. folder: where our files lie, with a slash."""
    launcher = launcher_of(run, options)
    if launcher == "torchtitan":
        words = ["-m", "torchtitan.train", "--job.config_file", folder + TORCHTITAN_CONFIG]
    elif launcher == "megatron":
        words = [Start(script_of(run, options)), *megatron_words(run, options, resources)]
    elif run.parallel.framework == "deepspeed":
        words = [Start(options.script), "--deepspeed", "--deepspeed_config", folder + DEEPSPEED_CONFIG]
    else:
        words = [Start(options.script)]
    return [*words, *options.script_arguments]


def script_of(run: Run, options: RequestOptions) -> str:
    """The script that was named; Megatron's own where none was."""
    named = options.script != RequestOptions.model_fields["script"].default
    return MEGATRON_SCRIPT if run.parallel.framework == "megatron" and not named else options.script


def launch_words(run: Run, options: RequestOptions, program: Iterable[str],
                 rendezvous: Iterable[str]) -> list[str]:
    """One agent per node that starts a process per GPU; python where there is one process."""
    if launcher_of(run, options) == "python":
        return [Start("python3"), *program]
    return [Start("torchrun"), f"--nnodes={run.cluster.num_nodes}", f"--nproc-per-node={gpus_of_node(run)}",
            *rendezvous, *program]


def environment(run: Run) -> dict[str, str]:
    """Variables of every process. Ref: Megatron-LM megatron/training/arguments.py (validate_args)."""
    divided = run.parallel.tp > 1 or run.parallel.cp > 1
    capability = run.cluster.gpu.compute_capability
    if run.parallel.framework == "megatron" and divided and (capability or (0, 0)) < (10, 0):
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {}


def exports(run: Run) -> str:
    """The same for a shell script."""
    return "".join(f"export {name}={value}\n" for name, value in environment(run).items())


def launch_script(run: Run, options: RequestOptions, resources: Resources) -> str:
    """launch.sh: started once on every node, without a scheduler."""
    program, nodes = program_words(run, options, resources), run.cluster.num_nodes
    if launcher_of(run, options) == "deepspeed":
        usage, words = deepspeed_launch(run, options, program)
    elif nodes == 1:
        usage, words = "# Start it on that node.", launch_words(run, options, program, ["--standalone"])
    else:
        usage = ("# Start it on every node, with RDZV_ENDPOINT=<first node>:"
                 f"{options.port} in the environment.")
        words = launch_words(run, options, program, [
            f"--rdzv-id={job_name_of(run, options)}", "--rdzv-backend=c10d",
            Shell('--rdzv-endpoint="${RDZV_ENDPOINT:?set it to <first node>:<port>}"')])
    head = LAUNCH_HEAD.format(name=one_line(run.name), gpus=run.cluster.gpus, usage=usage,
                              nodes="1 node" if nodes == 1 else f"{nodes} nodes")
    return f"{head}\n{exports(run)}{command(words)}\n"


def deepspeed_launch(run: Run, options: RequestOptions, program: Iterable[str]
                     ) -> tuple[str, list[str]]:
    """DeepSpeed's launcher reaches the other nodes by ssh, from the first one."""
    nodes, gpus = run.cluster.num_nodes, gpus_of_node(run)
    size = [f"--num_gpus={gpus}", f"--master_port={options.port}"]
    if nodes == 1:
        return "# Start it on that node.", ["deepspeed", *size, *program]
    usage = (f"# Start it on one node. HOSTFILE has a line `name slots={gpus}` for each node, "
             "reached by ssh.")
    return usage, ["deepspeed", Shell('--hostfile="${HOSTFILE:?a file with a line per node}"'),
                   f"--num_nodes={nodes}", *size, *program]


def job_name_of(run: Run, options: RequestOptions) -> str:
    """The name that was given, or the run's as a label."""
    return options.job_name or label(run.name)


def settings_of_script(run: Run) -> Iterator[str]:
    """What no launcher can say, and the script itself has to do."""
    training = run.training
    yield (f"micro-batches of {training.micro_batch_size} sequences of {training.seq_len:,} tokens, "
           f"{run.num_microbatches} per optimizer step and rank")
    yield f"precision {training.precision}, optimizer {training.optimizer}, attention {training.attention}"
    yield f"recompute {recompute_text(run)}, loss {training.loss}"
    axes = {"dp": run.parallel.dp, "tp": run.parallel.tp, "pp": run.parallel.pp, "cp": run.parallel.cp}
    if any(size > 1 for name, size in axes.items() if name != "dp"):
        yield "a mesh of " + ", ".join(f"{name} = {size}" for name, size in axes.items())
    yield "resuming from the last checkpoint in its folder, and saving to it"
    yield ("saving on SIGTERM, within the 30 s that torchrun leaves its workers (its newer releases: "
           "--shutdown-timeout); what was not saved is done again")
