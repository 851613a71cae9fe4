"""Bytes that kernels save and allocate (docs/formulas.d/kernels.md), and the loss head's peak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_cases import library, ops
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpuledger.torch_runs.kernels import activation, dropout, loss, norm, rotary

__all__ = ["ops"]

N, H, F, V = 64, 96, 160, 224               # tokens, hidden, feed-forward, vocabulary
PARTIALS = 64                               # min(N, 256)


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(dtype).requires_grad_()


def saved_bytes(run: Callable[[], Any], parameters: list[Tensor]) -> int:
    """Bytes of the distinct storages that autograd saves, parameters aside."""
    own = {p.untyped_storage().data_ptr() for p in parameters}
    seen: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        run()
    return sum(seen.values())


def test_norms_save_the_stream_and_one_or_two_numbers_per_row(ops: Any) -> None:
    x, r, w, b = tensor(N, H), tensor(N, H), tensor(H), tensor(H)
    stream = 2 * N * H
    assert saved_bytes(lambda: norm.rms_norm(ops, x, w, 1e-5), [w]) == stream + 4 * N
    assert saved_bytes(lambda: norm.add_rms_norm(ops, x, r, w, 1e-5), [w]) == stream + 4 * N
    assert saved_bytes(lambda: norm.layer_norm(ops, x, w, b, 1e-5), [w, b]) == stream + 8 * N
    assert saved_bytes(lambda: norm.add_layer_norm(ops, x, r, w, b, 1e-5),
                       [w, b]) == stream + 8 * N


def test_the_stream_is_saved_once_for_two_norms(ops: Any) -> None:
    x, r, w = tensor(N, H), tensor(N, H), tensor(H)

    def block() -> None:
        _, h = norm.add_rms_norm(ops, x, r, w, 1e-5)
        norm.rms_norm(ops, h, w, 1e-5)

    assert saved_bytes(block, [w]) == 2 * N * H + 2 * 4 * N


def test_activations_save_their_inputs(ops: Any) -> None:
    x, up, b, d = tensor(N, F), tensor(N, F), tensor(F), tensor(H, F)
    assert saved_bytes(lambda: activation.bias_gelu(ops, x, b, True), [b]) == 2 * N * F
    assert saved_bytes(lambda: activation.swiglu(ops, x, up), []) == 4 * N * F
    # With the down-projection: its input is recomputed, not saved.
    assert saved_bytes(lambda: activation.bias_gelu_linear(ops, x, b, d, None, True),
                       [b, d]) == 2 * N * F
    assert saved_bytes(lambda: activation.swiglu_linear(ops, x, up, d), [d]) == 4 * N * F
    composed = saved_bytes(lambda: functional.linear(activation.swiglu(ops, x, up), d), [d])
    assert composed == 6 * N * F


def test_halves_of_one_matmul_are_saved_as_one_storage(ops: Any) -> None:
    both = tensor(N, 2 * F)

    def run() -> None:
        gate, up = both.chunk(2, -1)
        activation.swiglu(ops, gate, up)

    assert saved_bytes(run, []) == 4 * N * F


def test_losses_save_gradients_only(ops: Any) -> None:
    target = torch.randint(V, (N,))
    hidden, w = tensor(N, H), tensor(V, H)
    logits = tensor(N, V)
    copied = logits.detach().clone().requires_grad_()
    assert saved_bytes(lambda: loss.cross_entropy(ops, copied, target), []) == 2 * N * V
    half = logits.detach().half().requires_grad_()
    assert saved_bytes(lambda: loss.cross_entropy(ops, half, target), []) == 2 * N * V + 8
    assert saved_bytes(lambda: loss.linear_cross_entropy(ops, hidden, w, target),
                       [w]) == 2 * N * H + 2 * V * H


def test_rotary_and_dropout_save_nothing(ops: Any) -> None:
    x, table = tensor(2, N, 4, 16), torch.rand(N, 8)
    assert saved_bytes(lambda: rotary.rotary(ops, x, table, table), [table]) == 0
    assert saved_bytes(lambda: rotary.rotary_in_place(ops, x * 1, table, table), [table]) == 0
    assert saved_bytes(lambda: dropout.dropout(ops, x, 0.1), []) == 0


# ---- what is allocated: the CPU allocator's own record ----


def allocations(run: Callable[[], Any]) -> list[int]:
    """The sizes that a call allocates on the CPU, in order, frees as negative numbers."""
    run()
    with torch.profiler.profile(profile_memory=True) as profile:
        kept = run()
    moves = [event.nbytes() for event in profile.profiler.kineto_results.events()
             if event.name() == "[memory]"]
    del kept
    return moves


def test_norms_allocate_what_the_formulas_say(ops: Any) -> None:
    x, r, w, b = (t.detach() for t in (tensor(N, H), tensor(N, H), tensor(H), tensor(H)))
    stream, row, column = 2 * N * H, 4 * N, 2 * H
    assert allocations(lambda: ops.add_rms_norm(x, r, w, 1e-5)) == [stream, stream, row]
    assert allocations(lambda: ops.add_layer_norm(x, r, w, b, 1e-5)) == [stream, stream, row, row]
    rstd, partials = torch.ones(N), 4 * PARTIALS * H
    assert allocations(lambda: ops.rms_norm_backward(x, r, x, w, rstd)) == [
        stream, column, partials, -partials]
    assert allocations(lambda: ops.layer_norm_backward(x, r, x, w, rstd, rstd, True)) == [
        stream, column, column, 2 * partials, -2 * partials]


def test_activations_allocate_what_the_formulas_say(ops: Any) -> None:
    x, up, b, d, dout = (t.detach() for t in (
        tensor(N, F), tensor(N, F), tensor(F), tensor(H, F), tensor(N, H)))
    wide, partials, weight = 2 * N * F, 4 * PARTIALS * F, 2 * H * F
    assert allocations(lambda: ops.swiglu(x, up)) == [wide]
    assert allocations(lambda: ops.swiglu_backward(x, x, up)) == [wide, wide]
    assert allocations(lambda: ops.bias_gelu_backward(x, x, b, True)) == [
        wide, 2 * F, partials, -partials]
    assert allocations(lambda: ops.swiglu_linear_backward(dout, x, up, d)) == [
        wide, weight, -wide, wide, wide, wide, -wide]


def test_cross_entropy_allocates_what_the_formulas_say(ops: Any) -> None:
    target, logits = torch.randint(V, (N,)), tensor(N, V).detach().requires_grad_()
    assert allocations(lambda: loss.cross_entropy(ops, logits, target).detach()) == [
        8, 4 * N, 4, -8, -4 * N]


def test_losses_allocate_what_the_formulas_say(ops: Any) -> None:
    hidden, w, target = tensor(N, H).detach(), tensor(V, H).detach(), torch.randint(V, (N,))
    chunk = 16
    logits, losses, count = 2 * chunk * V, 4 * N, 8


    def run() -> Any:
        return ops.linear_cross_entropy(hidden, w, target, -100, chunk, False, True, True)

    assert [size for size in allocations(run) if size] == [
        count, losses, 2 * N * H, 2 * V * H, logits, 4, -losses, -logits]


def test_adamw_allocates_nothing(ops: Any) -> None:
    from gpuledger.torch_runs.kernels import adamw
    params = [torch.nn.Parameter(tensor(N, H).detach()) for _ in range(3)]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = adamw.FusedAdamW(params, ops)
    optimizer.step()
    assert allocations(lambda: optimizer._update(optimizer.param_groups[0], params, 2)) == []


# ---- the loss head of Llama 3 8B, 8,192 tokens, on fake tensors ----


class LivePeak(TorchDispatchMode):
    """The largest sum of the storages that operators made and that were alive together."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs))
                 if isinstance(x, Tensor)}
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in given:
                storage = x.untyped_storage()
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: (ref, size) for key, (ref, size) in self.alive.items()
                      if not ref.expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self.alive.values()))
        return out


TOKENS, HIDDEN, VOCAB = 8192, 4096, 128256


def head_peak(run: Callable[[Tensor, Tensor, Tensor], Any]) -> int:
    """Peak bytes beyond hidden, weight and target."""
    with FakeTensorMode():
        hidden = torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(VOCAB, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        target = torch.empty(TOKENS, dtype=torch.int64)
        with LivePeak() as live:
            run(hidden, weight, target)
    return live.peak_bytes


def test_llama_3_8b_chunked_loss_needs_a_tenth_of_the_eager_peak() -> None:
    kernels = library("cpu")

    def eager(hidden: Tensor, weight: Tensor, target: Tensor) -> None:
        # Llama's own code, float32 logits, but not kept: the least that eager needs.
        functional.cross_entropy(functional.linear(hidden, weight).float(), target).backward()

    def chunked(hidden: Tensor, weight: Tensor, target: Tensor) -> None:
        with torch.no_grad():
            rows = loss.default_chunk_rows(TOKENS, HIDDEN, VOCAB)
            loss.linear_cross_entropy_forward(kernels, hidden, weight, target, -100, rows, False,
                                              True, True)

    eager_bytes, chunked_bytes = head_peak(eager), head_peak(chunked)
    chunk_logits, gradients = 2 * 256 * VOCAB, 2 * (TOKENS + VOCAB) * HIDDEN
    assert chunked_bytes == gradients + chunk_logits + 4 * TOKENS + 8 + 4
    assert eager_bytes == pytest.approx(12 * TOKENS * VOCAB, rel=0.01)
    assert chunked_bytes * 10 <= eager_bytes
    print(f"eager {eager_bytes:,} B, chunked {chunked_bytes:,} B, "
          f"{eager_bytes / chunked_bytes:.1f} times less")
