"""`RequestOptions`: what a request needs to know that no run says."""

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from ...config.record import Record
from ...errors import Problem

Launcher = Literal["python", "torchrun", "deepspeed", "megatron", "torchtitan"]
Scheduler = Literal["slurm", "kubernetes"]

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")       # RFC 1123, as Kubernetes wants it
LONGEST_LABEL = 52             # with "-12345" behind it, a pod's host name stays below 63
SLURM_WORD = re.compile(r"[A-Za-z0-9_.,:@+/][A-Za-z0-9_.,:@+/=-]*")
TEXTS = ("script", "image", "checkpoint_folder", "volume_claim", "currency")


class RequestOptions(Record):
    """Tokens, money, power, and the names that a cluster gives to things."""

    tokens: int = Field(gt=0, le=10**18, description="tokens to train on")
    launcher: Launcher | None = Field(
        default=None, description="what starts the script; null: the one of the run's framework"
    )
    schedulers: tuple[Scheduler, ...] = Field(
        default=("slurm", "kubernetes"), description="for whom a job is written"
    )
    price_per_gpu_hour: float | None = Field(
        default=None, ge=0, le=10**6, description="in `currency`; null: no cost is said"
    )
    currency: str = Field(default="USD", description="of the price")
    pue: float | None = Field(
        default=None, ge=1, le=10,
        description="power usage effectiveness of the site; null: the GPU boards alone",
    )
    wall_time_limit_hours: float | None = Field(
        default=None, gt=0, le=10**6, description="longest job that the cluster takes"
    )
    stop_seconds: int = Field(
        default=300, ge=60, le=65535,
        description="so long before its end a job is told to stop",
    )
    job_name: str | None = Field(default=None, description="null: made from the run's name")
    partition: str | None = Field(default=None, description="Slurm partition")
    account: str | None = Field(default=None, description="Slurm account")
    qos: str | None = Field(default=None, description="Slurm quality of service")
    namespace: str = Field(default="default", description="Kubernetes namespace")
    image: str = Field(default="pytorch/pytorch:latest", description="container image")
    volume_claim: str | None = Field(
        default=None, description="PersistentVolumeClaim that holds the checkpoints"
    )
    cpus_per_gpu: int = Field(default=8, gt=0, le=1024, description="CPU cores per GPU")
    script: str = Field(default="train.py", description="the training script")
    script_arguments: tuple[str, ...] = Field(
        default=(), description="passed on to the script as they are"
    )
    checkpoint_folder: str = Field(default="checkpoints", description="where the script saves")
    checkpoint_interval_seconds: float | None = Field(
        default=None, gt=0, le=10**8, description="null: from failures and write bandwidth"
    )
    mean_time_between_failures_hours: float | None = Field(
        default=None, gt=0, le=10**7, description="of the whole job, not of one GPU"
    )
    checkpoint_bytes_per_second: float | None = Field(
        default=None, gt=0, le=1e15, description="write bandwidth of all ranks together"
    )
    kept_checkpoints: int = Field(
        default=3, gt=0, le=10**6, description="full checkpoints that stay on disk"
    )
    port: int = Field(default=29500, gt=0, le=65535, description="of the rendezvous")

    @classmethod
    def prepared(cls, values: Any) -> Any:
        """Lists of a file are tuples here."""
        if not isinstance(values, dict):
            return values
        return {key: tuple(value) if isinstance(value, list) else value
                for key, value in values.items()}

    def cross_field_problems(self) -> Iterator[Problem]:
        for name in ("job_name", "namespace", "volume_claim"):
            value = getattr(self, name)
            if value is not None and not is_label(value):
                yield Problem(
                    f"{name} = {value!r} is not a name that Kubernetes takes",
                    f"use at most {LONGEST_LABEL} lower-case letters, digits and -",
                )
        for name in ("partition", "account", "qos"):
            value = getattr(self, name)
            if value is not None and not SLURM_WORD.fullmatch(value):
                yield Problem(
                    f"{name} = {value!r} cannot stand in a #SBATCH line",
                    "use letters, digits and _ . , : @ + / = -",
                )
        for name in TEXTS:
            yield from text_problems(name, getattr(self, name))
        for argument in self.script_arguments:
            if "\0" in argument:
                yield Problem("script_arguments hold a NUL character", "leave it out")
        if self.volume_claim is not None and not self.checkpoint_folder.startswith("/"):
            yield Problem(
                f"checkpoint_folder = {self.checkpoint_folder!r} is where volume_claim is mounted, "
                "but not a full path",
                "write it from / on, for example /checkpoints",
            )
        yield from self._time_problems()

    def _time_problems(self) -> Iterator[Problem]:
        limit = self.wall_time_limit_hours
        if limit is not None and limit * 3600 < 2 * self.stop_seconds:
            yield Problem(
                f"wall_time_limit_hours = {limit:g} leaves nothing beside stop_seconds = "
                f"{self.stop_seconds}",
                "raise the limit, or lower stop_seconds",
            )


def is_label(text: str) -> bool:
    """A name that pods, services and claims may have."""
    return len(text) <= LONGEST_LABEL and LABEL.fullmatch(text) is not None


def text_problems(name: str, value: str | None) -> Iterator[Problem]:
    """Names of files and images: not empty, on one line."""
    if value is not None and (not value.strip() or not value.isprintable()):
        yield Problem(
            f"{name} = {value!r} is empty or not on one line", "write printable characters"
        )
    elif value is not None and value.startswith("-"):
        yield Problem(f"{name} = {value!r} would be read as an option", "write ./ before it")


def label(text: str) -> str:
    """A run's name as a job's: lower case, `-` for everything else."""
    word = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_LABEL].strip("-")
    return word or "train"
