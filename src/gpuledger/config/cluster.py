"""`Gpu` and `Cluster`: the hardware, with a source for every number."""

from collections.abc import Iterator

from pydantic import Field

from ..errors import Problem
from .efficiency import Efficiency
from .record import Record


class DensePeaks(Record):
    """Dense peak throughput in FLOP/s per datatype; null where unknown, never the sparse figure."""

    fp32: float | None = Field(default=None, gt=0, description="FP32 without tensor cores, FLOP/s")
    tf32: float | None = Field(default=None, gt=0, description="TF32, FLOP/s")
    fp16: float | None = Field(default=None, gt=0, description="FP16 tensor cores, FLOP/s")
    bf16: float | None = Field(default=None, gt=0, description="BF16 tensor cores, FLOP/s")
    fp8: float | None = Field(default=None, gt=0, description="FP8, FLOP/s")
    int8: float | None = Field(default=None, gt=0, description="INT8, op/s")
    fp4: float | None = Field(default=None, gt=0, description="FP4, FLOP/s")


class Gpu(Record):
    """One accelerator as one PyTorch device."""

    name: str = Field(description="preset name, for example h100-80gb-sxm")
    full_name: str = Field(
        description="as torch.cuda.get_device_name() prints it, or the vendor's name"
    )
    vendor: str = Field(description="nvidia, amd, ...")
    capability: str | None = Field(
        default=None, description="CUDA compute capability, for example 9.0"
    )
    num_sms: int | None = Field(
        default=None, gt=0, description="streaming multiprocessors (compute units)"
    )
    memory_bytes: int = Field(
        gt=0, description="nominal capacity as labelled, bytes (80 GB: 80 * 2**30)"
    )
    torch_visible_bytes: int | None = Field(
        default=None,
        gt=0,
        description="total_memory as torch.cuda.get_device_properties() reports it",
    )
    bandwidth_bytes_per_second: float | None = Field(
        default=None, gt=0, description="memory bandwidth"
    )
    dense_peak_flops_per_second: DensePeaks = Field(description="dense peaks by datatype")
    link_bytes_per_second: float | None = Field(
        default=None,
        gt=0,
        description="link to other GPUs of the node (NVLink), bytes/s, both directions added",
    )
    power_watts: float | None = Field(default=None, gt=0, description="board power limit")
    context_bytes: int | None = Field(
        default=None,
        ge=0,
        description="memory taken by a CUDA context with PyTorch's kernels loaded",
    )
    efficiency: Efficiency | None = Field(
        default=None,
        description="measured efficiency curves (`gpuledger calibrate`); null: presets/efficiency",
    )
    sources: dict[str, str] = Field(description="where each number comes from, by field")

    def cross_field_problems(self) -> Iterator[Problem]:
        if self.torch_visible_bytes is not None and self.torch_visible_bytes > self.memory_bytes:
            yield Problem(
                f"torch_visible_bytes = {self.torch_visible_bytes} is more than "
                f"memory_bytes = {self.memory_bytes}",
                "PyTorch never sees more than the card has",
            )
        parts = (self.capability or "0.0").split(".")
        if len(parts) != 2 or not all(part.isdecimal() for part in parts):
            yield Problem(
                f"capability = {self.capability!r} is not a compute capability",
                'write major and minor as text, for example "9.0"',
            )

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """(major, minor), or None where it is not known."""
        if self.capability is None:
            return None
        major, minor = self.capability.split(".")
        return int(major), int(minor)

    @property
    def capacity_bytes(self) -> int:
        """What PyTorch can see, or the nominal capacity where that is not known."""
        return self.torch_visible_bytes or self.memory_bytes


class Cluster(Record):
    """The GPUs of a run."""

    name: str = Field(default="cluster", description="how reports call it")
    gpu: Gpu = Field(
        description="GPU preset name, or the fields inline",
        json_schema_extra={
            "hint": "pass --gpu, for example --gpu h100-80gb-sxm; `gpuledger presets gpus` "
            "lists them"
        },
    )
    gpus: int = Field(
        gt=0,
        le=10**7,
        description="GPUs in all",
        json_schema_extra={"hint": "pass --gpus, for example --gpus 8"},
    )
    gpus_per_node: int = Field(
        default=8, gt=0, le=10**4, description="GPUs that share one fast link"
    )
    network_bytes_per_second: float | None = Field(
        default=None, gt=0, description="network per GPU between nodes, bytes/s, one direction"
    )
    source: str | None = Field(default=None, description="where the numbers come from")

    def cross_field_problems(self) -> Iterator[Problem]:
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            yield Problem(
                f"gpus = {self.gpus} is not a multiple of gpus_per_node = {self.gpus_per_node}",
                "runs over several nodes use whole nodes: change gpus, or set gpus_per_node",
            )

    @property
    def num_nodes(self) -> int:
        """Nodes that the run occupies, the last one perhaps in part."""
        return -(-self.gpus // self.gpus_per_node)
