"""What a process takes of the GPU outside PyTorch's allocator: the CUDA context, and NCCL.

Both depend on versions, drivers and topologies that a run file does not name, so each is a range with
an expected value: never part of the tensors' terms, never fitted.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from gpuledger.config.cluster import Gpu
from gpuledger.config.run import Run

from . import nccl
from .communicators import Communicator, communicators

GIB = 2**30
# Published bytes of a context with lazy module loading (torch >= 1.13, CUDA >= 11.7), by capability
LAZY_CONTEXTS: tuple[tuple[tuple[int, int] | None, int, str], ...] = (
    ((8, 6), 256 * 2**20, "RTX 3090, torch 2.7.1+cu128: invoke-ai/InvokeAI#9413"),
    (None, 287_047_680, "pytorch/pytorch#86509"),
    ((8, 9), 426 * 2**20, "RTX 6000 Ada, torch 2.10+cu130: unslothai/unsloth-zoo#1053"),
    ((8, 0), round(0.47 * GIB), "A100, torch 2.1.1+cu121: stas00/ml-engineering training/performance"),
    (None, round(0.55 * GIB), "2 GPUs before NCCL: stas00/ml-engineering training/performance"),
    (None, 616 * 2**20, "LMCache/LMCache#4019"),
)
EAGER_CONTEXT_BYTES = round(0.92 * GIB)     # every kernel loaded, A100, torch 2.1.1+cu121: stas00
# What stays after the only communicator is destroyed (1.28 - 0.55 GiB): stas00, as above
NCCL_CODE_BYTES = round((1.28 - 0.55) * GIB)


@dataclass(frozen=True)
class Range:
    """Bytes: at least, expected, at most."""

    low: int
    expected: int
    high: int

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)


@dataclass(frozen=True)
class OutsidePart:
    """One line of the account. equation: a row of docs/formulas.md."""

    name: str
    nbytes: Range
    equation: str
    detail: str


@dataclass(frozen=True)
class Outside:
    """None where nothing is published about the vendor's runtime."""

    context: Range | None
    nccl: Range | None
    parts: tuple[OutsidePart, ...] = ()

    @property
    def total(self) -> Range:
        """What is known of both."""
        return sum_of(r for r in (self.context, self.nccl) if r is not None)


def sum_of(ranges: Iterable[Range]) -> Range:
    total = Range(0, 0, 0)
    for each in ranges:
        total += each
    return total


def outside_of(run: Run) -> Outside:
    """The context, and every communicator that the run makes."""
    gpu = run.cluster.gpu
    context = context_part(gpu)
    parts = [] if context is None else [context]
    alone = run.parallel.world_size == 1
    groups = None if alone or gpu.vendor != "nvidia" else nccl_parts(run)
    parts += groups or []
    nothing = Range(0, 0, 0) if alone else None
    return Outside(context.nbytes if context else None,
                   sum_of(part.nbytes for part in groups) if groups is not None else nothing,
                   tuple(parts))


def context_part(gpu: Gpu) -> OutsidePart | None:
    """The GPU's own figure, else the published ones: those of its architecture, or the median. [E7]"""
    if gpu.context_bytes is not None:
        same = Range(gpu.context_bytes, gpu.context_bytes, gpu.context_bytes)
        return OutsidePart("CUDA context", same, "E7", gpu.sources.get("context_bytes", "the GPU's record"))
    if gpu.vendor != "nvidia":
        return None
    everything = [nbytes for _, nbytes, _ in LAZY_CONTEXTS]
    mine = [nbytes for capability, nbytes, _ in LAZY_CONTEXTS
            if capability == gpu.compute_capability and capability is not None]
    expected = round(median(mine or everything))
    what = "this architecture" if mine else "other architectures"
    return OutsidePart("CUDA context", Range(min(everything), expected, EAGER_CONTEXT_BYTES), "E7",
                       f"published for {what}, not measured on this GPU")


def nccl_parts(run: Run) -> list[OutsidePart]:
    """Code that stays loaded, and the buffers of each communicator."""
    gpu, node = run.cluster.gpu, run.cluster.gpus_per_node
    links = nccl.Links(gpu.compute_capability or (0, 0), gpu.link_bytes_per_second)
    parts = [OutsidePart("NCCL code", Range(0, NCCL_CODE_BYTES // 2, NCCL_CODE_BYTES), "E8",
                         "0 to what one published run kept after its communicator was destroyed")]
    for group in communicators(run):
        nbytes, detail = buffers_of(group, links, node)
        if not group.certain:
            nbytes = Range(0, 0, nbytes.high)
            detail += ", if it is used"
        parts.append(OutsidePart(f"NCCL {group.name}", nbytes, "E9", detail))
    return parts


def buffers_of(group: Communicator, links: nccl.Links, gpus_per_node: int) -> tuple[Range, str]:
    """A ring in every channel; trees and NVLink SHARP where sums are formed; peers that send. [E9]

    Low: rings alone, in the channels that the search found before they are doubled. High: trees and
    NVLink SHARP whatever it is used for.
    """
    local = group.ranks_in_node(gpus_per_node)
    inside = local == group.ranks
    channels = channels_of(group, links, inside)
    if group.use == "send and receive":
        return peer_buffers(group, links, inside), f"{group.peers} peers of {group.ranks} ranks"
    link = nccl.link_bytes() if local > 1 else nccl.network_link_bytes()
    worst = nccl.link_bytes() if inside else nccl.network_link_bytes()
    trees = int(group.ranks > 2)
    sums = group.use == "all-reduce"
    sharp = nccl.nvls_bytes(local) if links.nvlink and links.capability >= (9, 0) and local > 2 else 0
    nbytes = Range(
        channels.low * link,
        channels.expected * link * (1 + trees * sums) + sharp * (sums and inside),
        channels.high * worst * (1 + trees) + sharp)
    where = f"{group.ranks} ranks" if inside else f"{group.ranks} ranks, {local} in a node"
    return nbytes, f"{where}, {group.use}, {channels.expected} channels"


def channels_of(group: Communicator, links: nccl.Links, inside: bool) -> Range:
    """Inside a node from the links, at most what NCCL has; across nodes NICs decide, 8 to 32 with 16
    expected. [E1]

    Ref: connect.cc doubles up to 16 from capability 9.0 on; NVIDIA/nccl#1412 shows 8 on two nodes.
    """
    if inside:
        doubled = nccl.ring_channels(links)
        return Range(nccl.search_channels(links), doubled, nccl.MAX_CHANNELS if links.nvlink else 4)
    return Range(min(8, nccl.ring_channels(links)), min(16, nccl.ring_channels(links)), 32)


def peer_buffers(group: Communicator, links: nccl.Links, inside: bool) -> Range:
    """Both directions to each peer: connections in a node, shared buffers over the network. [E2] [E5]"""
    if inside:
        counts = (2, nccl.p2p_channels(links), nccl.MAX_CHANNELS if links.nvlink else 4)
        low, expected, high = (group.peers * count * nccl.link_bytes() for count in counts)
        return Range(low, expected, high)
    each_way = (nccl.shared_network_bytes(count, nccl.NETWORK_CHUNK_BYTES) for count in (8, 32, 64))
    low, expected, high = (2 * nbytes for nbytes in each_way)
    return Range(low, expected, high)
