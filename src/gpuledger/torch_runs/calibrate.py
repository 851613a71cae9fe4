"""What `gpuledger calibrate` measures on one GPU, in about a minute; each piece also runs on a CPU.

Host time per kernel, matrix products by datatype and layout at the power limit, fused attention,
copies, and one whole layer, whose difference from the sum of its parts is a row of its own. With
several ranks (torchrun) all-reduces as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuledger.compute.step_time.fits import AttentionSample, ProductSample
from gpuledger.config.model import Bias, Model
from gpuledger.config.training import Training

from .clock import Clock
from .step import Trainer, nobody

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}
LAYOUTS = ("nn", "nt", "tn")
"""Forward of a stored (k, n), forward of nn.Linear's (n, k), and the weight's gradient."""
SHAPES = (
    (2048, 4096, 4096),
    (4096, 4096, 4096),
    (8192, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 12288, 4096),
    (8192, 4096, 16384),
    (8192, 28672, 4096),
    (4096, 2048, 8192),
    (16384, 6144, 2048),
    (1024, 8192, 8192),
    (8192, 1024, 8192),
    (2048, 16384, 1024),
)
LENGTHS, HEAD_DIMS, NUM_HEADS = (1024, 4096, 16384), (64, 128), 16
BACKENDS = {
    "flash2": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
COPY_BYTES = (10**6, 10**7, 10**8)
COLLECTIVE_BYTES = (64 * 2**10, 4 * 2**20, 256 * 2**20)
CHAIN_BLOCKS = 16
FORWARD_KERNELS, BACKWARD_KERNELS = 5, 8
"""Kernels of one block of the chain. Forward: norm, product, GELU, product, addition. Backward: two
products each for both linears, GELU, two of the norm, the sum of the block input's two gradients.
"""
LAYER = Model(
    num_layers=3,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_hidden_size=14336,
    vocab_size=1024,
    max_position_embeddings=4096,
    norm="rmsnorm",
    activation="swiglu",
    positions="rotary",
    qkv_projection="separate",
    bias=Bias(
        query=False, key_value=False, attention_out=False, mlp_up=False, mlp_down=False, norm=False
    ),
    tie_embeddings=False,
    dropout=0.0,
    attention_dropout=0.0,
    embedding_dropout=0.0,
)
"""A LLaMA layer of 8B; the small vocabulary keeps the head out of the way."""


class TinyBlock(nn.Module):
    """x + down(gelu(up(norm(x)))), so small that the device is always waiting."""

    def __init__(self, width: int, device: str):
        super().__init__()
        self.norm = nn.LayerNorm(width, device=device)
        self.up = nn.Linear(width, width, bias=False, device=device)
        self.down = nn.Linear(width, width, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def host_seconds_per_kernel(clock: Clock, width: int = 32) -> float:
    """CPU seconds to enqueue one kernel from eager PyTorch, forward and backward together."""
    device = str(clock.device)
    chain = nn.Sequential(*(TinyBlock(width, device) for _ in range(CHAIN_BLOCKS)))
    x = torch.randn(8, width, device=device, requires_grad=True)

    def work() -> None:
        chain.zero_grad(set_to_none=True)
        x.grad = None
        chain(x).sum().backward()

    kernels = CHAIN_BLOCKS * (FORWARD_KERNELS + BACKWARD_KERNELS) + 2
    return clock.host_seconds(work) / kernels


def products(
    clock: Clock, dtype: str, warm_seconds: float, shapes: Sequence[tuple[int, int, int]]
) -> Iterator[ProductSample]:
    """Every shape in every layout, on random numbers: the median over layouts of each shape.

    The first product keeps the device busy for warm_seconds, so that all run at the power limit.
    """
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    busy = warm_seconds
    for m, n, k in shapes:
        times = []
        for layout in LAYOUTS:
            a, b = operands(m, n, k, layout, DTYPES[dtype], clock.device)
            times.append(clock.seconds(partial(torch.matmul, a, b), busy, inner=3))
            busy = warm_seconds / len(shapes) / len(LAYOUTS)
        yield ProductSample(m, n, k, sorted(times)[len(times) // 2])


def operands(
    m: int, n: int, k: int, layout: str, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(m, k) and (k, n) of random numbers; t: stored the other way round."""
    a = (
        torch.randn(k, m, device=device).t()
        if layout[0] == "t"
        else torch.randn(m, k, device=device)
    )
    b = (
        torch.randn(n, k, device=device).t()
        if layout[1] == "t"
        else torch.randn(k, n, device=device)
    )
    return a.to(dtype), b.to(dtype)


def attention(
    clock: Clock, kernel: str, lengths: Sequence[int], head_dims: Sequence[int]
) -> Iterator[AttentionSample]:
    """Causal attention in bf16 by one of PyTorch's kernels, as many tokens at every length.

    Raises RuntimeError where PyTorch has no such kernel on this device.
    """
    for seq_len in lengths:
        for head_dim in head_dims:
            batch = max(lengths) // seq_len
            shape = (batch, NUM_HEADS, seq_len, head_dim)
            q, k, v = (
                torch.randn(shape, device=clock.device, dtype=torch.bfloat16, requires_grad=True)
                for _ in range(3)
            )
            core = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
            with sdpa_kernel([BACKENDS[kernel]]):
                y = core()
                forward = clock.seconds(core)
                backward = clock.seconds(
                    partial(
                        torch.autograd.grad, y, (q, k, v), torch.randn_like(y), retain_graph=True
                    )
                )
            yield AttentionSample(batch, NUM_HEADS, seq_len, head_dim, forward, backward)


def copy_bytes_per_second(clock: Clock, num_bytes: int) -> float:
    """Bytes read and written per second by a copy of `num_bytes` bytes."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / clock.seconds(lambda: target.copy_(source), inner=10)


def all_reduce_bus_bytes_per_second(clock: Clock, num_bytes: int) -> float:
    """Bus bandwidth of an all-reduce over all ranks of the default group, which must exist."""
    ranks = torch.distributed.get_world_size()
    buffer = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device=clock.device)
    seconds = clock.seconds(lambda: torch.distributed.all_reduce(buffer), inner=5)
    return 2 * (ranks - 1) / ranks * num_bytes / seconds


def layer_seconds(clock: Clock, model: Model, training: Training) -> float:
    """Forward and backward of one whole layer: a model of all its layers minus one of a single
    layer."""

    def seconds(layers: int) -> float:
        trainer = Trainer(
            model.model_copy(update={"num_layers": layers}), training, 1, str(clock.device)
        )

        def work() -> None:
            trainer.micro_batch(nobody)
            trainer.optimizer.zero_grad(set_to_none=True)

        return clock.seconds(work)

    return (seconds(model.num_layers) - seconds(1)) / (model.num_layers - 1)
