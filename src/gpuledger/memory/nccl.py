"""NCCL's buffers on one GPU: channels of a communicator, connections of a channel, bytes of each.

Everything is read from NCCL 2.29's sources; nothing is fitted. Ref: NVIDIA/nccl 5067397c
src/graph/search.cc, src/graph/connect.cc, src/graph/paths.cc, src/transport/{p2p,net,nvls}.cc, src/init.cc.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gpuledger.program.sizes import round_up

MIB = 2**20
LL_BYTES = 8 * 512 * 8 * 16                        # lines per thread x threads x steps x 16 bytes
LL128_BYTES = 120 * 640 * 8 * 8                    # elements per thread x threads x steps x 8 bytes
SIMPLE_BYTES = 4 * MIB
GRANULARITY_BYTES = 2 * MIB                        # CUDA_IPC_MIN
MAX_CHANNELS = 64
SHARED_STEPS = 16                                  # NCCL_SHARED_STEPS of network send and receive
NETWORK_CHUNK_BYTES, NVLINK_CHUNK_BYTES = 128 * 1024, 512 * 1024
NVLS_CHANNELS, NVLS_STEP_BYTES, STEPS = 16, 128 * 1024, 8

# GB/s of one NVLink as NCCL counts it, and nominal in one direction, by capability from this one on
NVLINKS = (((10, 0), 40.1, 50.0), ((9, 0), 20.6, 25.0), ((7, 0), 20.0, 25.0))
SPEEDS = (((10, 0), (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18)),
          ((9, 0), (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3)),
          ((0, 0), (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)))
HALF = 0.49                                        # of the best speed: slower ones are not tried
NVLINK_FROM = 200e9                                # bytes/s both ways; PCIe 5 x16 has 126e9


@dataclass(frozen=True)
class Links:
    """What joins the GPUs of a node. link_bytes_per_second: both directions added, None unknown."""

    capability: tuple[int, int]
    link_bytes_per_second: float | None

    @property
    def nvlink(self) -> bool:
        return (self.link_bytes_per_second or 0) >= NVLINK_FROM


def pow2_up(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


@lru_cache(maxsize=256)
def search_channels(links: Links) -> int:
    """Rings that the topology search finds in one node with NVSwitch, before connect.cc doubles them. [E1]

    The fastest speed whose rings fill the links best, down to half of the first one; twice as many
    where each is fast enough (search.cc ncclTopoCompute, ncclTopoDupChannels). One over PCIe.
    """
    if not links.nvlink:
        return 1
    _, counted, nominal = next(row for row in NVLINKS if links.capability >= row[0])
    total = counted * round((links.link_bytes_per_second or 0) / 2e9 / nominal)
    speeds = next(row for since, row in SPEEDS if links.capability >= since)
    fastest = max(s for s in speeds if s <= total)
    speed = max((s for s in speeds if HALF * fastest < s <= total),
                key=lambda s: (int(total // s) * s, s))
    found = int(total // speed)
    fast = speed >= (50 if links.capability > (8, 0) and found > 4 else 25)
    return min(2 * found, MAX_CHANNELS // 2) if fast else found


def ring_channels(links: Links) -> int:
    """Channels of a communicator inside one node: each ring that was found twice. [E1]"""
    return min(MAX_CHANNELS, 2 * search_channels(links))


def p2p_channels(links: Links) -> int:
    """Channels between two GPUs of a node that send and receive. [E2]"""
    if not links.nvlink:
        return 2
    _, _, nominal = next(row for row in NVLINKS if links.capability >= row[0])
    count = round((links.link_bytes_per_second or 0) / 2e9 / nominal)
    return min(pow2_up(ring_channels(links)), pow2_up(2 * count))


def receive_bytes() -> int:
    """A connection that receives from a GPU of the node: all three protocols. [E3]"""
    return int(round_up(LL_BYTES + LL128_BYTES + SIMPLE_BYTES + 1, GRANULARITY_BYTES))


def send_bytes() -> int:
    """One that sends to it: its flags alone, in the smallest allocation that can be shared. [E3]"""
    return GRANULARITY_BYTES


def link_bytes() -> int:
    """One connection each way in one channel of a node. [E3]"""
    return receive_bytes() + send_bytes()


def network_link_bytes() -> int:
    """The same to another node with GPUDirect: LL of what is sent stays on the host. [E4]"""
    sent, received = LL128_BYTES + SIMPLE_BYTES, LL_BYTES + LL128_BYTES + SIMPLE_BYTES
    return int(round_up(sent, GRANULARITY_BYTES) + round_up(received, GRANULARITY_BYTES))


def shared_network_bytes(channels: int, chunk_bytes: int) -> int:
    """The buffer that all sends (or all receives) over the network share. [E5]"""
    return channels * SHARED_STEPS * chunk_bytes


def nvls_bytes(ranks: int) -> int:
    """Buffers of NVLink SHARP in a node of so many ranks. [E6]"""
    return NVLS_CHANNELS * 2 * NVLS_STEP_BYTES * STEPS * ranks
