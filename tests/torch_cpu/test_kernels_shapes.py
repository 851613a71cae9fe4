"""Odd sizes, empty and strided inputs, sizes beyond 2^31, and what is refused, by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_cases import (
    CASES,
    EPS,
    Case,
    angles,
    as_tuple,
    each_case,
    gradients_of,
    library,
    ops,
    rotated,
)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from gpuledger.torch_runs.kernels import activation, adamw, dropout, loss, norm, rotary

__all__ = ["ops"]


@each_case
@pytest.mark.parametrize("cols", [2, 31, 264, 1030])
def test_any_width_gives_what_pytorch_gives(ops: Any, case: Case, cols: int) -> None:
    inputs = case.inputs(3, cols, torch.float64)
    outputs, wanted = as_tuple(case.fused(ops, *inputs)), as_tuple(case.reference(*inputs))
    for got, want in zip((*outputs, *gradients_of(outputs, inputs)),
                         (*wanted, *gradients_of(wanted, inputs)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@each_case
def test_no_rows_are_no_problem(ops: Any, case: Case) -> None:
    inputs = case.inputs(0, 16, torch.float32)
    outputs, wanted = as_tuple(case.fused(ops, *inputs)), as_tuple(case.reference(*inputs))
    for got, want in zip((*outputs, *gradients_of(outputs, inputs)),
                         (*wanted, *gradients_of(wanted, inputs)), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


def spread(x: Tensor) -> Tensor:
    """The same values with every dim's stride doubled."""
    room = x.new_empty([2 * size for size in x.shape])
    view = room[tuple(slice(None, None, 2) for _ in x.shape)]
    return view.copy_(x)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "rotary_in_place"],
                         ids=lambda case: case.name)
def test_strided_inputs_give_the_same(ops: Any, case: Case) -> None:
    inputs = [x.detach() for x in case.inputs(5, 16, torch.float32)]
    dense = as_tuple(case.fused(ops, *inputs))
    strided = as_tuple(case.fused(ops, *[spread(x) for x in inputs]))
    for a, b in zip(dense, strided, strict=True):
        torch.testing.assert_close(a, b)                # not equal: a matmul sums in another order


def test_halves_of_a_matmul_need_no_copy(ops: Any) -> None:
    both = torch.randn(2, 3, 32)
    gate, up = both.chunk(2, -1)
    torch.testing.assert_close(activation.swiglu(ops, gate, up), functional.silu(gate) * up)


def test_rotary_takes_heads_before_positions(ops: Any) -> None:
    x = torch.randn(2, 3, 5, 8).transpose(1, 2)         # [batch, seq, heads, head_dim]
    cosine, sine = angles(5, 4, x.dtype)
    want = rotated(x, cosine, sine, False)
    torch.testing.assert_close(rotary.rotary(ops, x, cosine, sine), want)
    rotary.rotary_in_place(ops, x, cosine, sine)
    torch.testing.assert_close(x, want)


def test_float32_weights_beside_16_bit_activations(ops: Any) -> None:
    x, w, b = torch.randn(4, 24).bfloat16(), torch.randn(24), torch.randn(24)
    x, w, b = x.requires_grad_(), w.requires_grad_(), b.requires_grad_()
    y = norm.layer_norm(ops, x, w, b, EPS)
    want = functional.layer_norm(x.float(), (24,), w, b, EPS)
    torch.testing.assert_close(y.float(), want, rtol=8e-3, atol=8e-3)
    dweight, dbias = torch.autograd.grad(y.float().sum(), [w, b])
    assert dweight.dtype == dbias.dtype == torch.float32
    torch.testing.assert_close(dbias, torch.full((24,), 4.0))


# ---- beyond 2^31 elements: addresses only, so that little memory is touched ----

FAR = 2**31 + 64


def far_rows(rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    """[rows, cols] whose last row starts beyond element 2^31; untouched pages cost nothing."""
    stride = -(-FAR // (rows - 1) // 8) * 8
    room = torch.empty(stride * (rows - 1) + cols, dtype=dtype)
    return room.as_strided((rows, cols), (stride, 1))


def test_rows_beyond_2_to_the_31(ops: Any) -> None:
    random = torch.randn(3, 16).bfloat16()
    gate, up = (far_rows(3, 16, torch.bfloat16).copy_(random) for _ in range(2))
    assert gate.stride(0) * 2 > 2**31
    assert torch.equal(activation.swiglu(ops, gate, up), activation.swiglu(ops, random, random))
    target = torch.tensor([3, 1, 2])
    assert torch.equal(loss.cross_entropy(ops, gate.requires_grad_(), target),
                       loss.cross_entropy(ops, random.clone(), target))


def test_tokens_beyond_2_to_the_31(ops: Any) -> None:
    far = far_rows(3, 16, torch.bfloat16).view(3, 1, 2, 8)
    near = torch.randn(3, 1, 2, 8).bfloat16()
    cosine, sine = angles(1, 4, near.dtype)
    rotary.rotary_in_place(ops, far.copy_(near), cosine, sine)
    assert torch.equal(far, rotary.rotary(ops, near, cosine, sine))


# ---- dropout's random numbers ----


def test_philox_gives_the_published_numbers(ops: Any) -> None:
    # Random123's known answers for philox4x32-10: counter 0, key 0 and counter 1 of the same key.
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    for word, position in zip(words, range(4), strict=True):
        below, above = word / 2**32, (word + 1) / 2**32
        ones = torch.ones(4, dtype=torch.float64)
        assert dropout.dropout(ops, ones, below, 0)[position] != 0
        assert dropout.dropout(ops, ones, above, 0)[position] == 0


def test_dropout_is_the_same_everywhere() -> None:
    x = torch.randn(1001)
    results = [dropout.dropout(library(mode), x, 0.25, 2**62 + 3) for mode in ("cpu", "host")]
    assert torch.equal(*results)
    kept = results[0].ne(0).float().mean().item()
    assert kept == pytest.approx(0.75, abs=0.05)


def test_dropout_draws_its_seed_from_torch(ops: Any) -> None:
    x = torch.randn(64)
    torch.manual_seed(1)
    first, second = dropout.dropout(ops, x, 0.5), dropout.dropout(ops, x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(first, dropout.dropout(ops, x, 0.5)) and not torch.equal(first, second)


# ---- AdamW ----


@pytest.mark.parametrize(("dtype", "state_dtype", "tolerance"), [
    (torch.float64, None, 1e-12), (torch.float32, None, 1e-6), (torch.bfloat16, None, 1e-2),
    (torch.float16, None, 2e-3), (torch.bfloat16, torch.float32, 1e-2)], ids=str)
def test_adamw_takes_the_steps_of_pytorch(ops: Any, dtype: torch.dtype,
                                          state_dtype: torch.dtype | None,
                                          tolerance: float) -> None:
    shapes = [(7,), (0,), (16, 8), (333,)]
    start = [torch.randn(shape).to(dtype) for shape in shapes]
    ours = [torch.nn.Parameter(x.clone()) for x in start]
    theirs = [torch.nn.Parameter(x.double()) for x in start]
    settings: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}
    fused = adamw.FusedAdamW(ours, ops, state_dtype=state_dtype, **settings)
    plain = torch.optim.AdamW(theirs, **settings)
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape).to(dtype)
            b.grad = a.grad.double()
        fused.step()
        plain.step()
    for a, b in zip(ours, theirs, strict=True):
        error = (a.detach().double() - b.detach()).norm()
        assert error <= tolerance * b.detach().norm() + 1e-30
        assert fused.state[a]["exp_avg"].dtype == (state_dtype or dtype)


# ---- fake and meta tensors ----


@each_case
def test_fake_tensors_have_the_shapes_of_real_ones(ops: Any, case: Case) -> None:
    real = case.inputs(5, 16, torch.float32)
    wanted = as_tuple(case.fused(ops, *real))
    with FakeTensorMode() as mode:
        inputs = [mode.from_tensor(x) for x in real]
        shapes = [y.shape for y in as_tuple(case.fused(ops, *inputs))]
    assert shapes == [y.shape for y in wanted]


# ---- refused, by name ----


def refusals() -> list[tuple[str, tuple[Any, ...], str]]:
    x, w = torch.randn(4, 8), torch.randn(8)
    ids = torch.tensor([1, 2, 3, 4])
    table = torch.randn(4, 2)
    q = torch.randn(2, 4, 2, 8)
    return [
        ("rms_norm", (x, torch.randn(7), EPS), r"weight must be \[8\].*but is \[7\] Float"),
        ("rms_norm", (x.bfloat16(), w.half(), EPS), "of x's dtype or float32, but is .* Half"),
        ("rms_norm", (x.int(), w, EPS), r"x must be float32, bfloat16.*but is \[4, 8\] Int"),
        ("add_rms_norm", (x, x[:3], w, EPS), r"residual must be \[4, 8\] Float, but is \[3, 8\]"),
        ("layer_norm", (x, w, torch.randn(9), EPS), "bias must be"),
        ("layer_norm_backward", (x, None, x, w, w, w, False), r"rstd must be \[4\] Float"),
        ("bias_gelu", (x, torch.randn(7), True), r"bias must be \[8\] Float, but is \[7\]"),
        ("swiglu", (x, x.bfloat16()), r"up must be \[4, 8\] Float, but is \[4, 8\] BFloat16"),
        ("cross_entropy_rows_", (x.t(), torch.empty(8), ids, None, -100, True), "last stride of 1"),
        ("cross_entropy_rows_", (x[:1].expand(4, 8), torch.empty(4), ids, None, -100, True),
         "overlap"),
        ("cross_entropy_rows_", (x, torch.empty(4), ids.int(), None, -100, True),
         r"target must be \[4\] Long, but is \[4\] Int"),
        ("cross_entropy_rows_", (x, torch.empty(3), ids, None, -100, True), "losses must be"),
        ("scale_", (x.t(), torch.tensor(2.0), None), "x .* must be contiguous"),
        ("rotary", (q, table.double(), table.double(), False, False), "cosine must be"),
        ("rotary", (q, table[:3], table[:3], False, False), r"cosine must be \[>= 4, <= 4\]"),
        ("rotary", (x, table, table, False, False), r"x must be \[batch, seq, heads, head_dim\]"),
        ("rotary_", (q.transpose(2, 3), table, table, False, False), "last stride of 1"),
        ("dropout", (x, 1.5, 0), r"probability must lie in \[0, 1\], but is 1.5"),
        ("adamw_", ([x], [x], [x], [x], 1e-3, 0.9, 0.99, 1e-8, 0.0, 0), "step counts from 1"),
        ("adamw_", ([x], [x.half()], [x], [x], 1e-3, 0.9, 0.99, 1e-8, 0.0, 1),
         r"grads\[0\] must be shaped like \[4, 8\] Float and Float, but is \[4, 8\] Half"),
        ("adamw_", ([x], [x.t().contiguous().t()], [x], [x], 1e-3, 0.9, 0.99, 1e-8, 0.0, 1),
         r"grads\[0\] .* must be contiguous"),
        ("adamw_", ([x], [], [x], [x], 1e-3, 0.9, 0.99, 1e-8, 0.0, 1), "grads has 0 tensors"),
    ]


@pytest.mark.parametrize("refusal", refusals(), ids=lambda r: f"{r[0]}: {r[2][:20]}")
def test_wrong_arguments_are_refused_by_name(ops: Any,
                                             refusal: tuple[str, tuple[Any, ...], str]) -> None:
    name, arguments, message = refusal
    with pytest.raises(RuntimeError, match=message):
        getattr(ops, name)(*arguments)


def test_a_target_outside_the_vocabulary_makes_the_loss_nan(ops: Any) -> None:
    assert loss.cross_entropy(ops, torch.randn(3, 8), torch.tensor([0, 8, 1])).isnan()
    assert loss.cross_entropy(ops, torch.randn(3, 8), torch.tensor([0, -7, 1])).isnan()
