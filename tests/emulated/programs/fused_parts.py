"""One block and the head of Llama-3-8B at 8,192 tokens by both kinds of kernels, measured alone.

Prints {"block torch": [saved bytes, peak bytes], ...} without what lives before the part runs.
"""
from __future__ import annotations

import json
from collections.abc import Callable

import torch
from fused_part_records import LOSSES, records
from torch import Tensor, nn

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.torch_runs.precision import WEIGHT_DTYPE
from gpuledger.torch_runs.reference_model.block import Block
from gpuledger.torch_runs.reference_model.head import Head
from gpuledger.torch_runs.reference_model.tables import Tables
from gpuledger.torch_runs.step import default_dtype
from gpuledger.torch_runs.stream import requested


def measured(part: Callable[[Tensor], Tensor], outside: list[Tensor], x: Tensor) -> list[int]:
    """Saved bytes, storages counted once, and the peak of forward and backward."""
    known = {t.untyped_storage()._cdata for t in (*outside, x)}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor.detach() if tensor.requires_grad else tensor      # no cycle with an output

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        part(x)
    for tensor in (x, *outside):
        tensor.grad = None
    before = requested("current")
    torch.cuda.reset_peak_memory_stats()
    y = part(x)
    y.backward(torch.empty_like(y))
    peak = requested("peak") - before
    for tensor in (x, *outside):
        tensor.grad = None
    return [sum(nbytes for storage, nbytes in saved.items() if storage not in known), peak]


def inputs(model: Model, training: Training, module: nn.Module) -> tuple[list[Tensor], Tensor]:
    x = torch.empty(1, training.seq_len, model.hidden_size, device="cuda", requires_grad=True)
    return list(module.parameters()), x


def block(kernels: str) -> list[int]:
    model, training = records(kernels)
    with default_dtype(WEIGHT_DTYPE[training.precision]):
        with torch.device("cuda"):
            module, tables = Block(model, training, 0), Tables(model, training)
        parameters, x = inputs(model, training, module)
    found = measured(lambda x: module(x, tables), [*parameters, *tables.buffers()], x)
    torch.cuda.empty_cache()
    return found


def head(kernels: str, loss: str) -> list[int]:
    model, training = records(kernels, loss)
    with default_dtype(WEIGHT_DTYPE[training.precision]):
        with torch.device("cuda"):
            module = Head(model, training)
        parameters, x = inputs(model, training, module)
    targets = torch.zeros(1, training.seq_len, dtype=torch.int64, device="cuda")
    found = measured(lambda x: module(x, targets), [*parameters, targets], x)
    torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    # cuBLAS takes its workspaces once, in each thread's first product: they are not the part's.
    one = torch.ones(8, 8, device="cuda", requires_grad=True)
    (one @ one).sum().backward()
    found = {f"block {kernels}": block(kernels) for kernels in ("torch", "fused")}
    print(json.dumps(found | {name: head(*settings) for name, settings in LOSSES.items()}))
