"""The published steps of benchmarks/published as inputs of the model: a row is a measured step."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpuledger.compute.step_time.curves import software
from gpuledger.compute.step_time.device import device_of_gpu
from gpuledger.compute.step_time.inputs import Decoder, Device, Layout, Software
from gpuledger.config import Gpu, load_gpu

PUBLISHED = Path(__file__).parents[1] / "published"
HOST_SECONDS = 12e-6
RECOMPUTE = {
    "none": {},
    "full": {"recompute_layers": 1.0},
    "selective": {"recompute_core": 1.0},
    "operators": {"recompute_operators": 1.0},
}
VTRAIN = {
    "gpu": "a100-80gb-sxm",
    "profile": "megatron-deepspeed",
    "precision": "fp16",
    "attention_kernel": "unfused",
    "gpus_per_node": "8",
    "recompute": "full",
    "gradient_bytes": "2",
    "citation": "VIA-Research/vTrain data/ground_truth (MIT)",
}
"""What the two vTrain files do not say in a column: Megatron-DeepSpeed with full recompute."""


@dataclass(frozen=True)
class Row:
    """One measured step and everything the model needs to predict it."""

    id: str
    group: str
    citation: str
    model: str
    gpu: str
    precision: str
    profile: str
    assumed: str
    decoder: Decoder
    layout: Layout
    device: Device
    software: Software
    step_seconds: float

    @property
    def source(self) -> str:
        """The group, with the schedules of one paper together."""
        return "Zero Bubble" if self.group.startswith("Zero Bubble") else self.group

    @property
    def work(self) -> tuple[object, ...]:
        """Rows with equal work on equal GPUs in equal software differ in their layout alone."""
        p = self.layout
        return (
            self.source,
            self.gpu,
            self.profile,
            self.precision,
            self.decoder,
            p.gpus,
            p.global_batch_size,
        )


def published_rows() -> list[Row]:
    """All rows of both files, in their order."""
    rows = [row_of({**VTRAIN, **values}) for values in read("step_time_vtrain.csv")]
    return rows + [row_of(values) for values in read("step_time.csv")]


def read(name: str) -> Iterator[dict[str, str]]:
    with (PUBLISHED / name).open(newline="") as file:
        yield from csv.DictReader(file)


def row_of(values: dict[str, str]) -> Row:
    """One line of a file; a missing column means its default."""
    gpu = gpu_of(values["gpu"], values.get("bandwidth_bytes_per_second", ""))
    network = values.get("network_bytes_per_second", "")
    device = device_of_gpu(
        gpu, values["precision"], values["attention_kernel"], float(network) if network else None
    )
    return Row(
        id=values["id"],
        group=values["group"],
        citation=values["citation"],
        model=values.get("model") or f"GPT, {values['num_layers']} x {values['hidden_size']}",
        gpu=gpu.name,
        precision=values["precision"],
        profile=values["profile"],
        assumed=values.get("assumed", ""),
        decoder=decoder_of(values),
        layout=layout_of(values),
        device=device,
        software=software_of(values),
        step_seconds=float(values["step_seconds"]),
    )


@lru_cache(maxsize=32)
def gpu_of(name: str, bandwidth: str) -> Gpu:
    """The preset, with the memory bandwidth that the source states for its cards."""
    gpu = load_gpu(name)
    return (
        gpu.model_copy(update={"bandwidth_bytes_per_second": float(bandwidth)})
        if bandwidth
        else gpu
    )


def decoder_of(values: dict[str, str]) -> Decoder:
    hidden, heads = int(values["hidden_size"]), int(values["num_heads"])
    gated = values.get("gated") == "1"
    return Decoder(
        num_layers=int(values["num_layers"]),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=int(values.get("num_kv_heads") or heads),
        head_dim=int(values.get("head_dim") or hidden // heads),
        ffn_hidden_size=int(values.get("ffn_hidden_size") or 4 * hidden),
        vocab_size=int(values["vocab_size"]),
        seq_len=int(values["seq_len"]),
        gated=gated,
        rotary=gated,
        tied_embeddings=values.get("tied") != "0",
    )


def layout_of(values: dict[str, str]) -> Layout:
    group = values.get("shard_group")
    return Layout(
        gpus=int(values["gpus"]),
        global_batch_size=int(values["global_batch_size"]),
        micro_batch_size=int(values["micro_batch_size"]),
        tp=int(values["tp"]),
        pp=int(values["pp"]),
        vpp=int(values.get("vpp") or 1),
        cp=int(values.get("cp") or 1),
        zero_stage=int(values.get("zero_stage") or 0),
        sequence_parallel=int(values.get("sequence_parallel") or 0),
        gpus_per_node=int(values["gpus_per_node"]),
        shard_group=int(group) if group else None,
        schedule=values.get("schedule") or "interleaved",
        **RECOMPUTE[values["recompute"]],
    )


def software_of(values: dict[str, str]) -> Software:
    overrides = dict(word.split("=") for word in values.get("overrides", "").split())
    host = 0.0 if values.get("asynchronous_host") == "1" else HOST_SECONDS
    return software(
        values["profile"],
        host_seconds=host,
        fp8=values["precision"] == "fp8",
        gradient_bytes=float(values["gradient_bytes"]),
        **{name: word == "true" for name, word in overrides.items()},
    )
