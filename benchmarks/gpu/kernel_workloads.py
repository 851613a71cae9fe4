"""What kernels.py measures: each kernel, the same in PyTorch, and its least traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gpuledger.torch_runs.kernels import activation, adamw, dropout, loss, norm, rotary

EPS = 1e-5


@dataclass(frozen=True)
class Sizes:
    """Llama 3 8B at 8,192 tokens; a rehearsal uses smaller ones."""

    tokens: int = 8192
    hidden: int = 4096
    ffn: int = 14336
    heads: int = 32
    vocab: int = 128256
    optimizer_tensors: int = 64


REHEARSAL = Sizes(tokens=64, hidden=64, ffn=96, heads=4, vocab=128, optimizer_tensors=3)


@dataclass
class Workload:
    """One computation: forward and backward, in several implementations.

    traffic_bytes: what has to be read and written at least; 0 where matmuls decide.
    differentiable: implementations map inputs to an output whose gradient is taken too.
    """

    name: str
    inputs: list[Tensor]
    traffic_bytes: int
    implementations: dict[str, Callable[..., Any]]
    differentiable: bool = True
    missing: dict[str, str] = field(default_factory=dict)


def composed_rms(x: Tensor, weight: Tensor) -> Tensor:
    """As Llama's own code: in float32, with casts."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def composed_rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """As Llama's own code: rotate_half."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    both = [torch.cat((table, table), -1)[:, None].to(x.dtype) for table in (cosine, sine)]
    return x * both[0] + turned * both[1]


class Drawer:
    """Draws inputs on one device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype).requires_grad_()


def workloads(ops: Any, sizes: Sizes, device: str) -> list[Callable[[], Workload]]:
    """Makers, so that one workload's tensors are gone before the next one's are made."""
    draw = Drawer(device, torch.bfloat16)
    makers = (_norms, _activations, _losses, _elementwise, _optimizer)
    return [maker for group in makers for maker in group(ops, sizes, draw)]


def _norms(ops: Any, s: Sizes, draw: Drawer) -> list[Callable[[], Workload]]:
    one = 2 * s.tokens * s.hidden

    def rms() -> Workload:
        def fused(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            return norm.add_rms_norm(ops, x, r, w, EPS)

        def eager(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            h = x + r
            return composed_rms(h, w), h

        inputs = [draw(s.tokens, s.hidden), draw(s.tokens, s.hidden), draw(s.hidden)]
        # forward: x, residual in; y, h out. backward: dy, dh, h in; dx out.
        return Workload("residual add + RMSNorm", inputs, 8 * one, {"gpuledger": fused,
                                                                    "eager": eager})

    def layer() -> Workload:
        def fused(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return norm.add_layer_norm(ops, x, r, w, b, EPS)

        def eager(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            h = x + r
            return functional.layer_norm(h, h.shape[-1:], w, b, EPS), h

        inputs = [draw(s.tokens, s.hidden), draw(s.tokens, s.hidden), draw(s.hidden),
                  draw(s.hidden)]
        return Workload("residual add + LayerNorm", inputs, 8 * one, {"gpuledger": fused,
                                                                      "eager": eager})

    return [rms, layer]


def _activations(ops: Any, s: Sizes, draw: Drawer) -> list[Callable[[], Workload]]:
    one = 2 * s.tokens * s.ffn

    def swiglu() -> Workload:
        implementations = {"gpuledger": lambda g, u: activation.swiglu(ops, g, u),
                           "eager": lambda g, u: functional.silu(g) * u}
        return Workload("SwiGLU", [draw(s.tokens, s.ffn), draw(s.tokens, s.ffn)], 8 * one,
                        implementations)

    def gelu() -> Workload:
        implementations = {
            "gpuledger": lambda x, b: activation.bias_gelu(ops, x, b, True),
            "eager": lambda x, b: functional.gelu(x + b, approximate="tanh")}
        return Workload("bias + GELU (tanh)", [draw(s.tokens, s.ffn), draw(s.ffn)], 5 * one,
                        implementations)

    return [swiglu, gelu]


def _losses(ops: Any, s: Sizes, draw: Drawer) -> list[Callable[[], Workload]]:
    target = torch.randint(s.vocab, (s.tokens,), device=draw.device)

    def cross_entropy() -> Workload:
        implementations = {
            # Over the logits themselves: after the first run they are gradients, as fast to read.
            "gpuledger": lambda x: loss.cross_entropy(ops, x, target),
            "eager": lambda x: functional.cross_entropy(x.float(), target)}
        return Workload("cross-entropy", [draw(s.tokens, s.vocab)], 4 * s.tokens * s.vocab,
                        implementations)

    def linear_cross_entropy() -> Workload:
        implementations = {
            "gpuledger": lambda h, w: loss.linear_cross_entropy(ops, h, w, target),
            "eager": lambda h, w: functional.cross_entropy(functional.linear(h, w).float(),
                                                           target)}
        return Workload("linear + cross-entropy", [draw(s.tokens, s.hidden),
                                                   draw(s.vocab, s.hidden)], 0, implementations)

    return [cross_entropy, linear_cross_entropy]


def _elementwise(ops: Any, s: Sizes, draw: Drawer) -> list[Callable[[], Workload]]:
    one = 2 * s.tokens * s.hidden

    def rotate() -> Workload:
        head_dim = s.hidden // s.heads
        angle = torch.rand(s.tokens, head_dim // 2, device=draw.device) * 6.28
        cosine, sine = angle.cos(), angle.sin()
        implementations = {"gpuledger": lambda x: rotary.rotary(ops, x, cosine, sine),
                           "eager": lambda x: composed_rotary(x, cosine, sine)}
        return Workload("rotary embedding", [draw(1, s.tokens, s.heads, head_dim)],
                        4 * one + 2 * 8 * cosine.numel(), implementations)

    def drop() -> Workload:
        implementations = {"gpuledger": lambda x: dropout.dropout(ops, x, 0.1, 7),
                           "eager": lambda x: functional.dropout(x, 0.1)}
        return Workload("dropout", [draw(s.tokens, s.hidden)], 4 * one, implementations)

    return [rotate, drop]


def _optimizer(ops: Any, s: Sizes, draw: Drawer) -> list[Callable[[], Workload]]:
    def step() -> Workload:
        params = [torch.nn.Parameter(draw(s.hidden, s.hidden).detach().float())
                  for _ in range(s.optimizer_tensors)]
        for param in params:
            param.grad = torch.randn_like(param)
        fused = adamw.FusedAdamW(params, ops, lr=1e-4)
        eager = torch.optim.AdamW(params, lr=1e-4, foreach=True)
        builtin = torch.optim.AdamW(params, lr=1e-4, fused=True)
        numel = sum(param.numel() for param in params)
        implementations = {"gpuledger": lambda *_: fused.step(), "eager": lambda *_: eager.step(),
                           "torch fused": lambda *_: builtin.step()}
        # p, g, m, v in; p, m, v out; all float32.
        return Workload("AdamW", list(params), 7 * 4 * numel, implementations, False)

    return [step]


def add_liger(workload: Workload) -> None:
    """Liger's implementation where it is installed and has one."""
    try:
        from liger_kernel.ops import cross_entropy as liger_loss
        from liger_kernel.ops import fused_add_rms_norm, fused_linear_cross_entropy, swiglu
    except ImportError as error:
        workload.missing["liger"] = str(error)
        return
    rms = fused_add_rms_norm.LigerFusedAddRMSNormFunction
    head = fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction
    available: dict[str, Callable[..., Any]] = {
        "residual add + RMSNorm": lambda x, r, w: rms.apply(x, r, w, EPS),
        "SwiGLU": lambda g, u: swiglu.LigerSiLUMulFunction.apply(g, u),
        "cross-entropy": lambda x: liger_loss.LigerCrossEntropyFunction.apply(
            x, torch.zeros(len(x), dtype=torch.int64, device=x.device))[0],
        "linear + cross-entropy": lambda h, w: head.apply(
            h, w, torch.zeros(len(h), dtype=torch.int64, device=h.device))[0],
    }
    if workload.name in available:
        workload.implementations["liger"] = available[workload.name]
    else:
        workload.missing["liger"] = "not in Liger"
