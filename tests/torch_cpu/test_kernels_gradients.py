"""Gradients of every kernel, and what PyTorch's dispatcher asks of an operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_cases import Case, as_tuple, each_case, ops, targets
from torch import Tensor
from torch.library import opcheck

__all__ = ["ops"]


@each_case
@pytest.mark.parametrize(("rows", "cols"), [(5, 8), (1, 7)])
def test_gradients_equal_finite_differences(ops: Any, case: Case, rows: int, cols: int) -> None:
    inputs = case.inputs(rows, cols, torch.float64)
    assert torch.autograd.gradcheck(lambda *x: case.fused(ops, *x), inputs)


@each_case
def test_values_equal_pytorch_in_float64(ops: Any, case: Case) -> None:
    inputs = case.inputs(5, 36, torch.float64)
    for got, want in zip(as_tuple(case.fused(ops, *inputs)), as_tuple(case.reference(*inputs)),
                         strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_a_graph_that_is_kept_gives_the_same_gradient_twice(ops: Any) -> None:
    from gpuledger.torch_runs.kernels import loss
    x = torch.randn(4, 9, requires_grad=True)
    y = loss.cross_entropy(ops, x.clone(), targets(4, 9)) * 3
    first, = torch.autograd.grad(y, x, retain_graph=True)
    second, = torch.autograd.grad(y, x)
    assert torch.equal(first, second)


def test_whoever_saved_the_logits_is_told_that_they_changed(ops: Any) -> None:
    from gpuledger.torch_runs.kernels import loss
    x = torch.randn(4, 9, requires_grad=True)
    logits = x * 1
    squared = (logits * logits).sum()
    total = squared + loss.cross_entropy(ops, logits, targets(4, 9))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_evaluation_leaves_the_logits_alone(ops: Any) -> None:
    from gpuledger.torch_runs.kernels import loss
    logits = torch.randn(4, 9)
    before = logits.clone()
    loss.cross_entropy(ops, logits, targets(4, 9))
    assert torch.equal(logits, before)


def operator_calls() -> list[tuple[str, tuple[Any, ...]]]:
    """Every operator with arguments it accepts."""
    def draw(*shape: int, grad: bool = True) -> Tensor:
        return torch.randn(*shape).requires_grad_(grad)

    def plain(*shape: int) -> Tensor:
        return draw(*shape, grad=False)

    x, w, target = draw(4, 32), draw(32), torch.tensor([1, 2, -100, 5])
    rotary_input, table = (2, 4, 2, 8), plain(4, 4)
    count = torch.tensor([3])
    return [
        ("rms_norm", (x, w, 1e-5)),
        ("add_rms_norm", (x, draw(4, 32), w, 1e-5)),
        ("rms_norm_backward", (plain(4, 32), None, plain(4, 32), plain(32), plain(4))),
        ("layer_norm", (x, w, draw(32), 1e-5)),
        ("add_layer_norm", (x, draw(4, 32), w, None, 1e-5)),
        ("layer_norm_backward",
         (plain(4, 32), plain(4, 32), plain(4, 32), plain(32), plain(4), plain(4), True)),
        ("bias_gelu", (x, w, True)),
        ("bias_gelu_backward", (plain(4, 32), plain(4, 32), plain(32), False)),
        ("bias_gelu_linear", (x, w, draw(6, 32), draw(6), True)),
        ("bias_gelu_linear_backward",
         (plain(4, 6), plain(4, 32), plain(32), plain(6, 32), True, True)),
        ("swiglu", (x, draw(4, 32))),
        ("swiglu_backward", (plain(4, 32), plain(4, 32), plain(4, 32))),
        ("swiglu_linear", (x, draw(4, 32), draw(6, 32))),
        ("swiglu_linear_backward", (plain(4, 6), plain(4, 32), plain(4, 32), plain(6, 32))),
        ("count_targets", (target, -100)),
        ("cross_entropy_rows_", (plain(4, 32), plain(4), target, count, -100, True)),
        ("mean_loss", (plain(4), count)),
        ("scale_", (plain(4, 32), torch.tensor(2.0), count)),
        ("linear_cross_entropy", (x, draw(9, 32), target, -100, 2, False, True, True)),
        ("rotary", (draw(*rotary_input), table, table, False, False)),
        ("rotary_", (plain(*rotary_input), table, table, True, True)),
        ("dropout", (x, 0.3, 7)),
        ("adamw_", ([plain(5), plain(3)], [plain(5), plain(3)], [plain(5), plain(3)],
                    [plain(5).abs(), plain(3).abs()], 1e-3, 0.9, 0.99, 1e-8, 0.01, 1)),
    ]


# PyTorch's own tracing looks at .grad of tensors that have none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("call", operator_calls(), ids=lambda call: call[0])
def test_operators_keep_the_rules_of_the_dispatcher(ops: Any, call: tuple[str, Any]) -> None:
    name, arguments = call
    opcheck(getattr(ops, name).default, arguments)


def test_every_operator_is_checked(ops: Any) -> None:
    schemas = torch._C._jit_get_all_schemas()
    namespace = ops.rms_norm.default.name().split("::")[0]
    defined = {schema.name.split("::")[1] for schema in schemas
               if schema.name.startswith(namespace + "::")}
    assert defined == {name for name, _ in operator_calls()}
