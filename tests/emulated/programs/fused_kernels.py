"""The fused kernels on the emulated GPU: requested bytes at the peak of each call."""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gpuledger.torch_runs.kernels import activation, adamw, load, loss, norm

TOKENS, HIDDEN, FFN, VOCAB = 8192, 4096, 14336, 128256


def requested(kind: str) -> int:
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{kind}"])


def peak(run: Callable[[], Any]) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = requested("current")
    run()
    return requested("peak") - before


def tensor(*shape: int) -> Tensor:
    return torch.empty(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def heads(ops: Any) -> dict[str, int]:
    """The loss head of Llama 3 8B at 8,192 tokens, forward and backward."""
    hidden, weight = tensor(TOKENS, HIDDEN), tensor(VOCAB, HIDDEN)
    target = torch.zeros(TOKENS, dtype=torch.int64, device="cuda")
    losses: dict[str, Callable[[], Tensor]] = {
        "chunked": lambda: loss.linear_cross_entropy(ops, hidden, weight, target),
        "in_place": lambda: loss.cross_entropy(ops, functional.linear(hidden, weight), target),
        "eager_float32": lambda: functional.cross_entropy(
            functional.linear(hidden, weight).float(), target),
        "eager_bfloat16": lambda: functional.cross_entropy(functional.linear(hidden, weight),
                                                           target),
    }
    found = {}
    (tensor(8, 8) @ tensor(8, 8)).sum().backward()      # the workspace of both passes' matmuls
    for name, run in losses.items():
        found[name] = peak(lambda run=run: run().backward())
        hidden.grad = weight.grad = None
    return found


def parts(ops: Any) -> dict[str, int]:
    """A norm with its residual, a gated MLP's end, an optimizer's step."""
    x, residual, weight = tensor(TOKENS, HIDDEN), tensor(TOKENS, HIDDEN), tensor(HIDDEN)
    gate, up, down = tensor(TOKENS, FFN), tensor(TOKENS, FFN), tensor(HIDDEN, FFN)
    kept: list[Any] = []
    found = {"norm_forward": peak(
        lambda: kept.append(norm.add_rms_norm(ops, x, residual, weight, 1e-5)))}
    y, h = kept.pop()
    found["norm_backward"] = peak(lambda: kept.append(
        torch.autograd.grad([y, h], [x, residual, weight], [x.detach(), x.detach()])))
    found["mlp_forward"] = peak(
        lambda: kept.append(activation.swiglu_linear(ops, gate, up, down)))
    param = torch.nn.Parameter(torch.empty(HIDDEN, HIDDEN, device="cuda"))
    param.grad = torch.empty_like(param)
    optimizer = adamw.FusedAdamW([param], ops)
    found["adamw_first_step"], found["adamw_step"] = peak(optimizer.step), peak(optimizer.step)
    return found


def main() -> None:
    torch.cuda.init()
    ops = load("cuda")
    print(json.dumps({**heads(ops), **parts(ops)}))


if __name__ == "__main__":
    main()
