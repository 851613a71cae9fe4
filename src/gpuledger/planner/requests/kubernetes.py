"""job.yaml: the run as an indexed Kubernetes Job, one pod per node, with a headless Service.

Ref: kubernetes.io/docs/concepts/workloads/controllers/job (Indexed), kubernetes.io/docs/tasks/job/
job-with-pod-to-pod-communication, kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus.
"""

from __future__ import annotations

from typing import Any

import yaml

from ...config.run import Run
from ...errors import InputError
from .deepspeed import CONFIG_NAME as DEEPSPEED_CONFIG
from .launchers import environment, gpus_of_node, job_name_of, launch_words, program_words
from .options import RequestOptions
from .resources import Resources
from .torchtitan import CONFIG_NAME as TORCHTITAN_CONFIG
from .words import one_line

NAME = "job.yaml"
CONFIG_FOLDER = "/etc/gpuledger/"
GPU_RESOURCE = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
RETRIES_PER_NODE = 3
class Dumper(yaml.SafeDumper):
    """Texts of several lines stand as they are."""


Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(
    "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None))
MOUNTED = (DEEPSPEED_CONFIG, TORCHTITAN_CONFIG)


def kubernetes_job(run: Run, options: RequestOptions, resources: Resources, files: dict[str, str]
                   ) -> str:
    """The manifest. files: what was written for the launcher; what the script reads is mounted."""
    mounted = {name: text for name, text in files.items() if name in MOUNTED}
    manifests = [service(run, options), job(run, options, resources, bool(mounted))]
    if mounted:
        manifests.insert(0, config_map(run, options, mounted))
    head = f"# {one_line(run.name)}: {run.cluster.gpus} GPUs in {run.cluster.num_nodes} pods.\n"
    if resources.jobs > 1:
        head += ("# It is longer than the wall-time limit. Kubernetes has no chain of jobs: the limit "
                 "is not set here.\n")
    return head + "---\n".join(
        yaml.dump(m, Dumper=Dumper, sort_keys=False, width=100, allow_unicode=True) for m in manifests)


def metadata(run: Run, options: RequestOptions, suffix: str = "") -> dict[str, Any]:
    return {"name": job_name_of(run, options) + suffix, "namespace": options.namespace}


def config_map(run: Run, options: RequestOptions, files: dict[str, str]) -> dict[str, Any]:
    """The files that the script reads."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(run, options, "-config"),
            "data": files}


def service(run: Run, options: RequestOptions) -> dict[str, Any]:
    """Gives pod i the name <job>-i.<job>, also before it is ready: the rendezvous is what makes it so."""
    name = job_name_of(run, options)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(run, options),
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True,
                     "selector": {"batch.kubernetes.io/job-name": name},
                     "ports": [{"name": "rendezvous", "port": options.port}]}}


def job(run: Run, options: RequestOptions, resources: Resources, mounted: bool) -> dict[str, Any]:
    """A pod per node, all at once; a pod that fails is started again and meets the others anew."""
    nodes = run.cluster.num_nodes
    spec: dict[str, Any] = {
        "completionMode": "Indexed", "completions": nodes, "parallelism": nodes,
        "backoffLimit": RETRIES_PER_NODE * nodes}
    if options.wall_time_limit_hours is not None and resources.jobs == 1:
        spec["activeDeadlineSeconds"] = -(-int(resources.job_seconds) // 60) * 60
    name = job_name_of(run, options)
    spec["template"] = {"spec": {
        "subdomain": name, "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": options.stop_seconds,
        "containers": [container(run, options, resources, mounted)],
        "volumes": list(volumes(run, options, mounted))}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(run, options), "spec": spec}


def container(run: Run, options: RequestOptions, resources: Resources, mounted: bool) -> dict[str, Any]:
    """One node's processes. Limits of GPUs are requests too."""
    name, gpus = job_name_of(run, options), gpus_of_node(run)
    words = launch_words(
        run, options, program_words(run, options, resources, CONFIG_FOLDER if mounted else ""),
        [f"--rdzv-id={name}", "--rdzv-backend=c10d", f"--rdzv-endpoint={name}-0.{name}:{options.port}"])
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if mounted:
        mounts.append({"name": "config", "mountPath": CONFIG_FOLDER.rstrip("/")})
    if options.volume_claim is not None:
        mounts.append({"name": "checkpoints", "mountPath": options.checkpoint_folder})
    variables = [{"name": key, "value": value} for key, value in environment(run).items()]
    return {"name": "train", "image": options.image, "command": [kept(word) for word in words],
            **({"env": variables} if variables else {}),
            "ports": [{"name": "rendezvous", "containerPort": options.port}],
            "resources": {"limits": {gpu_resource(run): gpus},
                          "requests": {"cpu": options.cpus_per_gpu * gpus}},
            "volumeMounts": mounts}


def gpu_resource(run: Run) -> str:
    """What the vendor's device plugin calls a GPU. Raises InputError where that is not known."""
    gpu = run.cluster.gpu
    if gpu.vendor not in GPU_RESOURCE:
        raise InputError(f"what Kubernetes calls a GPU of {gpu.vendor} is not known",
                         f"set schedulers: [slurm], or cluster.gpu.vendor: {' or '.join(GPU_RESOURCE)}")
    return GPU_RESOURCE[gpu.vendor]


def volumes(run: Run, options: RequestOptions, mounted: bool) -> list[dict[str, Any]]:
    """Shared memory for data loaders and NCCL (64 MiB without it), files, checkpoints."""
    found: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if mounted:
        found.append({"name": "config", "configMap": {"name": job_name_of(run, options) + "-config"}})
    if options.volume_claim is not None:
        found.append({"name": "checkpoints",
                      "persistentVolumeClaim": {"claimName": options.volume_claim}})
    return found


def kept(word: str) -> str:
    """Kubernetes replaces $(NAME) in a command; two dollar signs stand for one."""
    return word.replace("$", "$$")
