"""From measurements on this machine's GPU to a GPU file with efficiency curves, and what is left
over."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from gpuledger.compute.step_time.device import device_of_gpu
from gpuledger.compute.step_time.fits import ProductFit, fit_attention, fit_products, share_of
from gpuledger.compute.step_time.inputs import AttentionRate, Device
from gpuledger.compute.step_time.of_run import step_time
from gpuledger.config import Cluster, Gpu, Model, Parallelism, Run, Training, list_presets, load_gpu
from gpuledger.config.efficiency import AttentionCeiling, Efficiency
from gpuledger.errors import InputError

from . import calibrate
from .clock import Clock
from .environment import driver_version, is_emulated

Say = Callable[[str], None]
RANKS_VARIABLE = "WORLD_SIZE"  # set by torchrun


@dataclass(frozen=True)
class Bench:
    """Where to measure, and how large."""

    device: str = "cuda"
    shapes: tuple[tuple[int, int, int], ...] = calibrate.SHAPES
    lengths: tuple[int, ...] = calibrate.LENGTHS
    head_dims: tuple[int, ...] = calibrate.HEAD_DIMS
    layer: Model = calibrate.LAYER
    layer_tokens: int = 4096


ON_GPU = Bench()


@dataclass(frozen=True)
class Measured:
    """One line of the report: what, its value, what is assumed without it, and the unit."""

    what: str
    measured: float
    assumed: float | None
    unit: str


@dataclass
class Calibration:
    """A GPU with what was measured on it, line by line."""

    gpu: Gpu
    rows: list[Measured] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)


def base_gpu(name: str | None) -> Gpu:
    """The preset that describes this machine's GPU, by option or by PyTorch's name for the device.

    Raises InputError where there is no GPU, it is emulated, or no preset knows it.
    """
    if not torch.cuda.is_available():
        raise InputError(
            "no GPU is visible to PyTorch, and calibrate measures one",
            "run it on the machine that trains; gpuledger estimate needs no GPU",
        )
    if is_emulated():
        raise InputError("an emulated GPU has no speed to measure", "run calibrate on a real one")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # set by torchrun
    if name is not None:
        return load_gpu(name)
    device = torch.cuda.get_device_name()
    for preset in list_presets("gpus"):
        gpu = load_gpu(preset)
        if gpu.full_name == device:
            return gpu
    raise InputError(
        f"no GPU preset is called {device!r} by PyTorch",
        "pass --gpu with the preset or file that describes it",
    )


def run_calibration(gpu: Gpu, seconds: float, say: Say, bench: Bench = ON_GPU) -> Calibration:
    """Measures everything in about 3 x `seconds`; `say` gets a line before each part.

    Raises InputError where the GPU's record lacks its bandwidth or multiprocessors.
    """
    clock, result = Clock(bench.device), Calibration(gpu)
    dtypes = [name for name in calibrate.DTYPES if getattr(gpu.dense_peak_flops_per_second, name)]
    sixteen_bit = "bf16" if "bf16" in dtypes else "fp16"
    device = device_of_gpu(gpu, sixteen_bit, "flash2")
    say("host time per kernel")
    host = calibrate.host_seconds_per_kernel(clock)
    say("copies")
    copies = [calibrate.copy_bytes_per_second(clock, size) for size in calibrate.COPY_BYTES]
    bandwidth = share_of(copies[-1], device.bandwidth_bytes_per_second)
    device = replace(device, bandwidth_share=bandwidth)
    fits = {}
    for dtype in dtypes:
        say(f"matrix products in {dtype}, {seconds:g} s at the power limit")
        fits[dtype] = fit_products(
            list(calibrate.products(clock, dtype, seconds, bench.shapes)),
            of_dtype(device, gpu, dtype),
        )
    say("attention kernels")
    rates = attention_rates(clock, device, result, bench)
    link = link_share(clock, device, result, say)
    sixteen = fits[sixteen_bit]
    efficiency = Efficiency(
        best_matmul_flops_per_second={
            name: short(fit.best_flops_per_second) for name, fit in fits.items()
        },
        sustained_share=sixteen.sustained_share,
        tile_seconds=sixteen.tile_seconds,
        wave_quantisation=sixteen.wave_quantisation,
        bandwidth_share=bandwidth,
        link_share=link,
        attention={
            name: AttentionCeiling(forward=short(rate.forward), backward=short(rate.backward))
            for name, rate in rates.items()
        },
        host_seconds=short(host),
        measured_on=where(clock),
        sources={"all": "gpuledger calibrate"},
    )
    compare(result, efficiency, fits, copies)
    result.gpu = gpu.model_copy(update={"efficiency": efficiency})
    if sixteen_bit == "bf16":
        say("one whole layer")
        whole_layer(clock, result, bench)
    else:
        result.not_measured.append(
            "one whole layer: it is measured in bf16, which this GPU has not"
        )
    return result


def short(number: float) -> float:
    """Four significant digits: what was measured deserves no more."""
    return float(f"{number:.4g}")


def of_dtype(device: Device, gpu: Gpu, dtype: str) -> Device:
    """The device for products of another datatype."""
    return replace(device, products=device_of_gpu(gpu, dtype, "flash2").products)


def attention_rates(
    clock: Clock, device: Device, result: Calibration, bench: Bench
) -> dict[str, AttentionRate]:
    """Ceilings of each fused kernel that PyTorch has for this GPU."""
    rates = {}
    for kernel in calibrate.BACKENDS:
        try:
            samples = list(calibrate.attention(clock, kernel, bench.lengths, bench.head_dims))
            rates[kernel] = fit_attention(samples, device)
        except RuntimeError as error:
            result.not_measured.append(f"attention {kernel}: {str(error).splitlines()[0]}")
    return rates


def link_share(clock: Clock, device: Device, result: Calibration, say: Say) -> float | None:
    """Bus bandwidth of a large all-reduce over the link's nominal rate, where torchrun started
    ranks."""
    ranks = int(os.environ.get(RANKS_VARIABLE, "1"))
    if ranks == 1:
        result.not_measured.append(
            "collectives: one process sees one rank; start it with torchrun --nproc-per-node"
        )
        return None
    say(f"all-reduce over {ranks} ranks")
    torch.distributed.init_process_group("nccl")
    try:
        bus = [
            calibrate.all_reduce_bus_bytes_per_second(clock, size)
            for size in calibrate.COLLECTIVE_BYTES
        ]
    finally:
        torch.distributed.destroy_process_group()
    return share_of(bus[-1], device.link_bytes_per_second)


def compare(
    result: Calibration, efficiency: Efficiency, fits: dict[str, ProductFit], copies: list[float]
) -> None:
    """A line for every measured number beside what is assumed without it."""
    from gpuledger.compute.step_time.curves import efficiency_of

    before = efficiency_of(result.gpu)
    rows = result.rows
    rows.append(
        Measured(
            "host time per kernel",
            1e6 * (efficiency.host_seconds or 0),
            1e6 * (before.host_seconds or 0),
            "us",
        )
    )
    for dtype, fit in fits.items():
        known = before.best_matmul_flops_per_second.get(dtype)
        rows.append(
            Measured(
                f"best sustained {dtype} product",
                fit.best_flops_per_second / 1e12,
                known and known / 1e12,
                "TFLOP/s",
            )
        )
        rows.append(
            Measured(f"curve of {dtype} products, mean error", 100 * fit.mean_error, None, "%")
        )
    for size, rate in zip(calibrate.COPY_BYTES, copies, strict=True):
        nominal = result.gpu.bandwidth_bytes_per_second or rate
        rows.append(
            Measured(
                f"copy of {size / 1e6:g} MB, of the nominal bandwidth",
                100 * rate / nominal,
                100 * (before.bandwidth_share or 0),
                "%",
            )
        )
    for name, ceiling in efficiency.attention.items():
        known_ceiling = before.attention.get(name)
        for passes in ("forward", "backward"):
            assumed = getattr(known_ceiling, passes) if known_ceiling else None
            rows.append(
                Measured(
                    f"attention {name} {passes}, of the dense peak",
                    100 * getattr(ceiling, passes),
                    assumed and 100 * assumed,
                    "%",
                )
            )


def whole_layer(clock: Clock, result: Calibration, bench: Bench) -> None:
    """One layer as a whole beside the sum of its calibrated parts: the rest is nobody's."""
    model, training = bench.layer, layer_training(bench.layer_tokens)
    measured = calibrate.layer_seconds(clock, model, training)
    predicted = predicted_layer_seconds(result.gpu, model, training)
    result.rows.append(
        Measured("one layer, forward and backward", 1e3 * measured, 1e3 * predicted, "ms")
    )
    result.rows.append(
        Measured(
            "unexplained part of the layer", 100 * (measured - predicted) / measured, None, "%"
        )
    )


def layer_training(seq_len: int) -> Training:
    """How the whole layer is measured: two sequences in pure bf16 with PyTorch's flash kernel."""
    return Training(
        seq_len=seq_len,
        micro_batch_size=2,
        global_batch_size=2,
        precision="bf16",
        optimizer="sgd",
        attention="flash",
        recompute="none",
        loss="cross_entropy",
    )


def predicted_layer_seconds(gpu: Gpu, model: Model, training: Training) -> float:
    """The model's forward and backward for all layers minus that for one, per layer."""

    def seconds(layers: int) -> float:
        run = Run(
            model=model.model_copy(update={"num_layers": layers}),
            training=training,
            parallel=Parallelism(),
            cluster=Cluster(gpu=gpu, gpus=1),
        )
        return float(step_time(run).breakdown.compute)

    return (seconds(model.num_layers) - seconds(1)) / (model.num_layers - 1)


def where(clock: Clock) -> str:
    """Device, driver, PyTorch and day."""
    name = f"{torch.cuda.get_device_name()}, driver {driver_version()}" if clock.is_cuda else "CPU"
    return f"{name}, PyTorch {torch.__version__}, {datetime.date.today().isoformat()}"
