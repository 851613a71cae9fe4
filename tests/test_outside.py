"""Context and NCCL: channels, buffers and communicators by hand and against what was published."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.config import Run
from gpuledger.config.load import load_gpu
from gpuledger.estimate import estimate
from gpuledger.memory import nccl
from gpuledger.memory.communicators import Communicator, communicators
from gpuledger.memory.outside import (
    GIB,
    NCCL_CODE_BYTES,
    Range,
    buffers_of,
    context_part,
    outside_of,
)
from gpuledger.report.estimate_json import content
from gpuledger.report.estimate_table import estimate_table
from gpuledger.report.explain import explain
from meshes import on_mesh, resolved

MIB = 2**20
V100, A100 = nccl.Links((7, 0), 300e9), nccl.Links((8, 0), 600e9)
H100, B200 = nccl.Links((9, 0), 900e9), nccl.Links((10, 0), 1800e9)
PCIE = nccl.Links((8, 9), 63e9)


@pytest.mark.parametrize(("links", "rings", "peers"), (
    (V100, 12, 16), (A100, 24, 32), (H100, 24, 32), (B200, 32, 32), (PCIE, 2, 2)))
def test_channels_that_were_logged(links: nccl.Links, rings: int, peers: int) -> None:
    """H100: 24 rings in nccl#1259, 32 channels per pair in nccl#1685. PCIe: 2 in returnn#1469."""
    assert (nccl.ring_channels(links), nccl.p2p_channels(links)) == (rings, peers)


def test_buffers_that_were_logged() -> None:
    """nccl#1685 counts allocations of 10,485,760 and 2,097,152 B; nccl#2363 one of 536,870,912 B."""
    assert (nccl.receive_bytes(), nccl.send_bytes()) == (10_485_760, 2_097_152)
    assert nccl.shared_network_bytes(64, nccl.NVLINK_CHUNK_BYTES) == 536_870_912
    assert nccl.network_link_bytes() == 2 * 10_485_760
    assert nccl.nvls_bytes(8) == 16 * 2 * 8 * 128 * 1024 * 8


PUBLISHED: tuple[tuple[str, Communicator, nccl.Links, bool, int], ...] = (
    # what, communicator, links, whether NCCL's code was loaded by it, bytes that were measured
    ("nccl#964, 2 GPUs", Communicator("x", 2, 1, "all-reduce"), A100, False, 544 * MIB),
    ("nccl#964, 3 or 4 GPUs", Communicator("x", 4, 1, "all-reduce"), A100, False, 688 * MIB),
    ("nccl#864, one communicator", Communicator("x", 8, 1, "all-reduce"), A100, True, 1_600 * MIB),
    ("stas00, barrier of 2 GPUs", Communicator("x", 2, 1, "all-reduce"), A100, True, round(1.45 * GIB)),
    ("nccl#1685, all-to-all", Communicator("x", 8, 1, "send and receive", peers=7), H100, False,
     round(3.28 * GIB)),
)
OFF = {"nccl#964, 2 GPUs": -0.47, "nccl#964, 3 or 4 GPUs": -0.16, "nccl#864, one communicator": -0.41,
       "stas00, barrier of 2 GPUs": -0.55, "nccl#1685, all-to-all": -0.20}


@pytest.mark.parametrize(("what", "group", "links", "loads_code", "measured"), PUBLISHED)
def test_published_measurements(what: str, group: Communicator, links: nccl.Links, loads_code: bool,
                                measured: int) -> None:
    """How far the expected value is off; nothing is tuned, so the figures are recorded as they are."""
    nbytes, _ = buffers_of(group, links, 8)
    if loads_code:
        nbytes += Range(0, NCCL_CODE_BYTES // 2, NCCL_CODE_BYTES)
    assert nbytes.expected / measured - 1 == pytest.approx(OFF[what], abs=0.005)
    assert nbytes.low <= nbytes.expected <= nbytes.high
    assert nbytes.low <= measured <= nbytes.high


def llama(gpu: str = "h100-80gb-sxm", **axes: Any) -> Run:
    run = resolved("llama-3.1-8b", "precision=bf16-mixed", "attention=flash", "seq_len=8192",
                   "micro_batch_size=1", "recompute=full", "loss=chunked")
    cluster = run.cluster.model_copy(update={"gpu": load_gpu(gpu)})
    return on_mesh(run.model_copy(update={"cluster": cluster}), **axes)


def names(run: Run) -> dict[str, tuple[int, int, str]]:
    return {group.name: (group.ranks, group.stride, group.use) for group in communicators(run)}


def test_communicators_of_frameworks() -> None:
    assert names(llama()) == {}
    assert names(llama(dp=8, framework="ddp")) == {"dp": (8, 1, "all-reduce")}
    hsdp = names(llama(dp=16, framework="fsdp2", zero_stage=3, fsdp2={"replicate": 2}))
    assert hsdp == {"fsdp shards": (8, 1, "gather and scatter"), "fsdp copies": (2, 8, "all-reduce"),
                    "world": (16, 1, "all-reduce")}
    mesh = names(llama(dp=2, tp=4, pp=2, cp=2, sequence_parallel=True))
    assert mesh == {"tp": (4, 1, "gather and scatter"), "cp": (2, 4, "send and receive"),
                    "pp": (2, 16, "send and receive"), "dp": (4, 4, "all-reduce")}


def test_context_where_nothing_is_measured() -> None:
    """A100's own figure; a GPU of a known architecture; one of an unknown one: the median."""
    known = context_part(load_gpu("a100-80gb-sxm"))
    assert known is not None and known.nbytes == Range(504_658_657, 504_658_657, 504_658_657)
    ada, hopper = context_part(load_gpu("l40s-48gb")), context_part(load_gpu("h100-80gb-sxm"))
    assert ada is not None and ada.nbytes.expected == 426 * MIB
    assert hopper is not None
    assert hopper.nbytes == Range(256 * MIB, (426 * MIB + 504_658_657) // 2, 987_842_478)
    assert context_part(load_gpu("mi300x-192gb")) is None


def test_a_groups_place_decides() -> None:
    """Eight ranks in a node: connections over NVLink; one rank in each of two nodes: over the network."""
    inside, _ = buffers_of(Communicator("dp", 8, 1, "gather and scatter"), H100, 8)
    across, _ = buffers_of(Communicator("dp", 2, 8, "gather and scatter"), H100, 8)
    assert inside.expected == 24 * 12 * MIB
    assert across.expected == 16 * 20 * MIB
    sums, _ = buffers_of(Communicator("dp", 8, 1, "all-reduce"), H100, 8)
    assert sums.expected == 2 * inside.expected + nccl.nvls_bytes(8)


def test_three_verdicts() -> None:
    """Capacities around what the tensors need with the least, the expected and the most outside."""
    run = llama(dp=8, framework="fsdp2", zero_stage=3)
    base = estimate(run).memory
    total = base.outside.total
    verdicts = []
    for outside in (total.low - 1, total.low, total.expected, total.high):
        gpu = run.cluster.gpu.model_copy(update={"torch_visible_bytes": base.tensor_bytes + outside})
        at = run.model_copy(update={"cluster": run.cluster.model_copy(update={"gpu": gpu})})
        answer = estimate(at)
        memory = answer.memory
        verdicts.append((memory.may_fit, memory.fits, memory.fits_with_margin))
        unsure = memory.may_fit != memory.fits_with_margin
        assert any("too close to call" in warning for warning in answer.warnings) == unsure
    assert verdicts == [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]


def test_what_is_printed() -> None:
    """The table, the JSON and --explain show ranges; they are never part of the allocated bytes."""
    answer = estimate(llama(dp=8, framework="fsdp2", zero_stage=3))
    memory = content(answer)["memory"]
    assert sum(part["bytes"] for part in memory["outside"]) == memory["context_bytes"] + memory["nccl_bytes"]
    assert memory["nccl_low_bytes"] < memory["nccl_bytes"] < memory["nccl_high_bytes"]
    assert memory["device_used_bytes"] == (memory["by_stage"][0]["peak_allocated_bytes"]
                                           + memory["context_bytes"] + memory["nccl_bytes"])
    row = next(line for line in estimate_table(answer).splitlines() if line.startswith("NCCL"))
    assert " to " in row
    assert "NCCL fsdp shards" in explain(answer)


def test_other_vendors_are_not_guessed() -> None:
    outside = outside_of(llama("mi300x-192gb", dp=8, framework="fsdp2", zero_stage=3))
    assert (outside.context, outside.nccl) == (None, None)
    assert not estimate(llama("mi300x-192gb", dp=8, framework="fsdp2", zero_stage=3)).memory.fits_with_margin
