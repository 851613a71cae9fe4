"""`Run`: everything that an answer depends on."""

from collections.abc import Iterator

from pydantic import Field

from ..errors import Problem
from .cluster import Cluster, Gpu
from .model import Model
from .parallelism import Parallelism
from .record import Record
from .training import Attention, Training


class Run(Record):
    """A model, its training step, how it is divided and on what. Fully resolved: no names left."""

    name: str = Field(default="run", description="how reports call it")
    model: Model = Field(description="the architecture")
    training: Training = Field(description="one optimizer step")
    parallel: Parallelism = Field(description="how the run is divided over ranks")
    cluster: Cluster = Field(description="the GPUs")

    def cross_field_problems(self) -> Iterator[Problem]:
        yield from _mesh_problems(self)
        yield from _batch_problems(self)
        yield from _length_problems(self)
        yield from _attention_problems(self)

    @property
    def num_microbatches(self) -> int:
        """Forward/backward passes of one rank in one optimizer step."""
        return self.training.global_batch_size // (
            self.training.micro_batch_size * self.parallel.dp
        )


def _mesh_problems(run: Run) -> Iterator[Problem]:
    axes, gpus = run.parallel, run.cluster.gpus
    if axes.world_size != gpus:
        rest = axes.tp * axes.pp * axes.cp
        fitting = f"set dp to {gpus // rest}, or " if gpus % rest == 0 else ""
        yield Problem(
            f"dp * tp * pp * cp = {axes.dp} * {axes.tp} * {axes.pp} * {axes.cp} = "
            f"{axes.world_size}, but the cluster has {gpus} GPUs",
            f"{fitting}pass --gpus {axes.world_size}",
        )


def _batch_problems(run: Run) -> Iterator[Problem]:
    training, dp = run.training, run.parallel.dp
    step = training.micro_batch_size * dp
    if (
        training.global_batch_size % step
        and training.global_batch_size % training.micro_batch_size == 0
    ):
        below = training.global_batch_size // step * step
        nearest = f"{below} or {below + step}" if below else f"{step}"
        yield Problem(
            f"global_batch_size = {training.global_batch_size} is not a multiple of "
            f"micro_batch_size x dp = {training.micro_batch_size} x {dp} = {step}",
            f"use {nearest}, or change dp",
        )


def _length_problems(run: Run) -> Iterator[Problem]:
    model, seq_len = run.model, run.training.seq_len
    if model.positions == "learned" and seq_len > model.max_position_embeddings:
        yield Problem(
            f"seq_len = {seq_len} is longer than the model's {model.max_position_embeddings} "
            "learned positions",
            f"lower seq_len, or set max_position_embeddings: {seq_len}",
        )
    if seq_len % run.parallel.cp:
        yield Problem(
            f"seq_len = {seq_len} cannot be split over cp = {run.parallel.cp} ranks",
            "use a divisor of seq_len",
        )


def _attention_problems(run: Run) -> Iterator[Problem]:
    model, kernel = run.model, run.training.attention
    if model.attention_softcap is not None and kernel != "eager":
        yield Problem(
            f"attention_softcap = {model.attention_softcap} needs attention: eager, not {kernel}",
            "PyTorch's scaled_dot_product_attention has no soft cap; set training.attention: eager",
        )
    if model.logits_softcap is not None and run.training.loss == "fused_linear":
        yield Problem(
            f"loss: fused_linear does not apply logits_softcap = {model.logits_softcap}",
            "use loss: chunked",
        )
    if kernel == "flash":
        yield from _flash_problems(model)
    yield from _gpu_problems(run.cluster.gpu, kernel)


def _flash_problems(model: Model) -> Iterator[Problem]:
    """What PyTorch's flash kernel does not do."""
    if model.head_dim > 256:
        yield Problem(
            f"attention: flash goes up to head_dim 256, but the model's is {model.head_dim}",
            "use attention: efficient",
        )
    if model.positions == "alibi":
        yield Problem(
            "attention: flash takes no ALiBi bias in PyTorch, and the model has positions: alibi",
            "use attention: efficient",
        )
    if model.sliding_window is not None and model.head_dim % 8:
        yield Problem(
            f"attention: flash with a sliding window needs a head_dim that is a multiple of 8, not "
            f"{model.head_dim}",
            "use attention: efficient",
        )


def _gpu_problems(gpu: Gpu, kernel: Attention) -> Iterator[Problem]:
    capability = gpu.compute_capability
    too_old = gpu.vendor == "nvidia" and capability is not None and capability < (8, 0)
    if kernel in ("flash", "cudnn") and too_old:
        yield Problem(
            f"attention: {kernel} needs compute capability 8.0, but {gpu.name} has "
            f"{gpu.capability}",
            "use attention: efficient",
        )
    if kernel == "cudnn" and gpu.vendor != "nvidia":
        yield Problem(
            f"attention: cudnn needs an NVIDIA GPU, not {gpu.name}", "use attention: flash"
        )
