"""The step time of a `Run`: its records turned into the model's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config.model import Model
from ...config.run import Run
from ...config.training import EveryK, Recompute, Training
from ...errors import InputError
from ..products import DTYPE_OF_PRODUCTS
from ..sequence_flops import full_layers
from .breakdown import Breakdown
from .counted import counted
from .curves import architecture_of, efficiency_of, software
from .device import device_of_gpu, usual_network
from .error_range import ErrorRange, error_range
from .inputs import Counted, Decoder, Device, Layout, Software
from .step import step_breakdown

KERNELS = {
    "flash": "flash2",
    "efficient": "efficient",
    "cudnn": "cudnn",
    "eager": "unfused",
    "math": "unfused",
}
"""The generation behind each of PyTorch's kernels: its flash kernel is FlashAttention-2."""
STATES = {"sgd": 0, "adam": 2, "adamw": 2, "adafactor": 1, "lion": 1, "muon": 1, "adamw-8bit": 0.5}
"""Optimizer states of the size of the parameters (8-bit Adam: two of one byte)."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, where they go, and how far such estimates were off."""

    breakdown: Breakdown
    tokens_per_second_per_gpu: float
    error: ErrorRange
    assumptions: tuple[str, ...]

    @property
    def step_seconds(self) -> float:
        return float(self.breakdown.step_seconds)


def step_time(run: Run, schedule: str | None = None) -> StepTime:
    """Seconds of one optimizer step of a run. [T24]

    schedule: a key of `pipeline.SCHEDULES`; None is 1F1B, interleaved where vpp > 1. Raises
    InputError where the GPU's record lacks a number or the schedule is unknown.
    """
    device, program = device_of(run), software_of(run)
    breakdown = step_breakdown(
        decoder_of(run.model, run.training), layout_of(run, schedule), device, program
    )
    tokens = run.training.tokens_per_step
    return StepTime(
        breakdown=breakdown,
        tokens_per_second_per_gpu=tokens / float(breakdown.step_seconds) / run.cluster.gpus,
        error=error_range(run, profile_of(run), float(breakdown.step_seconds)),
        assumptions=tuple(assumptions_of(run)),
    )


def decoder_of(model: Model, training: Training) -> Decoder:
    """The model's sizes and the length of a sequence."""
    windowed = model.num_layers - full_layers(model)
    return Decoder(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        ffn_hidden_size=model.ffn_hidden_size,
        vocab_size=model.vocab_size,
        seq_len=training.seq_len,
        gated=model.gated,
        rotary=model.positions == "rotary",
        window=model.sliding_window,
        windowed_share=windowed / model.num_layers,
        tied_embeddings=model.tie_embeddings,
    )


def layout_of(run: Run, schedule: str | None = None) -> Layout:
    """The run's mesh, batch and recompute policy."""
    training, axes = run.training, run.parallel
    return Layout(
        gpus=run.cluster.gpus,
        global_batch_size=training.global_batch_size,
        micro_batch_size=training.micro_batch_size,
        tp=axes.tp,
        pp=axes.pp,
        vpp=axes.vpp,
        cp=axes.cp,
        zero_stage=axes.zero_stage,
        sequence_parallel=int(axes.sequence_parallel),
        gpus_per_node=run.cluster.gpus_per_node,
        schedule=schedule or "interleaved",
        **recomputed_shares(training.recompute, run.model.num_layers),
    )


def recomputed_shares(recompute: Recompute, num_layers: int) -> dict[str, float]:
    """Shares of the layers of which backward runs something again, by the names of `Layout`."""
    whole = float(recompute == "full")
    if isinstance(recompute, EveryK):
        whole = -(-num_layers // recompute.every) / num_layers
    return {
        "recompute_layers": whole,
        "recompute_core": float(recompute == "selective"),
        "recompute_operators": float(recompute == "per_op"),
    }


def device_of(run: Run) -> Device:
    """The cluster's GPU for the datatype of the run's products and its attention kernel."""
    return device_of_gpu(
        run.cluster.gpu,
        DTYPE_OF_PRODUCTS[run.training.precision],
        KERNELS[run.training.attention],
        run.cluster.network_bytes_per_second,
    )


def profile_of(run: Run) -> str:
    """Which list of operators runs: Megatron's own modules, or PyTorch's."""
    if run.parallel.framework == "megatron":
        fused = KERNELS[run.training.attention] != "unfused"
        return "megatron-core" if fused else "megatron-2021"
    return "torch-eager"


def software_of(run: Run) -> Software:
    """The profile's operators in the run's datatypes."""
    training, model = run.training, run.model
    profile = profile_of(run)
    host = efficiency_of(run.cluster.gpu).host_seconds or 0.0
    own = profile == "torch-eager"
    autocast = training.precision in ("fp16-mixed", "bf16-mixed")
    changes: dict[str, Any] = {
        "dropout": model.dropout > 0,
        "optimizer_bytes": optimizer_bytes(training),
    }
    if own:
        changes |= {
            "fused_attention": KERNELS[training.attention] != "unfused",
            "weight_cast_bytes": 6.0 if autocast else 0.0,
            "gradient_bytes": 2.0 if training.precision in ("bf16", "bf16-master") else 4.0,
            "accumulate_bytes": 6.0 if training.precision in ("bf16", "bf16-master") else 12.0,
            "scatters_sends": run.parallel.framework != "deepspeed",
            "overlaps_data_parallel": run.parallel.framework is not None,
            "overlaps_weight_gather": run.parallel.framework != "deepspeed",
            "root_holds_head": run.parallel.framework == "fsdp1",
            "stops_recompute_early": True,
            "counted": counted_of(run),
        }
    return software(profile, host_seconds=host, **changes)


def counted_of(run: Run) -> Counted | None:
    """Kernels and traffic of PyTorch's operators; None where the program is not divided as the run
    is (sequence parallelism, sizes that tp or cp do not divide): the profile's closed form is
    taken."""
    axes = run.parallel
    if axes.sequence_parallel:
        return None
    try:
        return counted(run.model, run.training, tp=axes.tp, cp=axes.cp)
    except InputError:
        return None


def optimizer_bytes(training: Training) -> float:
    """Device traffic per parameter of one optimizer step. [T19]

    Gradient read, weight read and written, each state read and written, in the datatype of the
    states; with a separate master the gradient is 16-bit and the 16-bit weight is written as well.
    Clipping reads the gradient twice and writes it once more.
    """
    item = 2 if training.precision == "bf16" else 4
    states = STATES[training.optimizer] + (training.optimizer == "sgd" and training.momentum > 0)
    gradient = 2 if training.precision in ("bf16", "bf16-master") else 4
    weight_copy = 2 if training.precision == "bf16-master" else 0
    clipping = 3 * gradient if training.gradient_clipping else 0
    return float(gradient + 2 * item * (1 + states) + weight_copy + clipping)


def assumptions_of(run: Run) -> list[str]:
    """What the seconds rest on that nobody said, one line each."""
    gpu, lines = run.cluster.gpu, []
    efficiency = efficiency_of(gpu)
    dtype = DTYPE_OF_PRODUCTS[run.training.precision]
    if dtype not in efficiency.best_matmul_flops_per_second:
        lines.append(
            f"no {dtype} matrix product of {gpu.name} was measured: the share of the dense "
            "peak that an A100 reaches (87 %) is taken"
        )
    if architecture_of(gpu) == "other" and efficiency.measured_on is None:
        lines.append(f"no efficiency curve of {gpu.name} was measured: an A100's is taken")
    if run.cluster.num_nodes > 1 and run.cluster.network_bytes_per_second is None:
        lines.append(
            f"network of {usual_network(gpu) / 1e9:g} GB/s per GPU: set "
            "cluster.network_bytes_per_second"
        )
    if gpu.efficiency is None or gpu.efficiency.host_seconds is None:
        lines.append(
            f"{(efficiency.host_seconds or 0) * 1e6:g} us of host time per kernel: "
            "gpuledger calibrate measures yours"
        )
    return lines
