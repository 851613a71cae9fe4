"""The reference model with gpuledger's fused kernels computes what it does with PyTorch's."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import library
from small_records import gpt2, llama, training
from test_reference_model import assert_same_step, build, loss_and_gradients, loss_of

from gpuledger.torch_runs.kernels.adamw import FusedAdamW
from gpuledger.torch_runs.optimizers import make_optimizer
from gpuledger.torch_runs.reference_model import fused

BIASES = ("query", "key_value", "attention_out", "mlp_up", "mlp_down", "norm", "head")
NO_BIAS = dict.fromkeys(BIASES, False)
MODELS = {
    "llama": llama(),
    "llama, one projection, partial rotation": llama(
        qkv_projection="fused", rotary_dim=4, gate_up_projection="fused",
        bias=NO_BIAS | {"mlp_down": True}),
    "llama, biases, norms of heads": llama(
        bias=NO_BIAS | {"query": True, "key_value": True}, qk_norm="head"),
    "sandwich, norms of projections": llama(
        norm_position="sandwich", qk_norm="full", qkv_projection="fused"),
    "gpt2": gpt2(),
    "gpt2, exact gelu, post norm": gpt2(activation="gelu", norm_position="post", bias=False),
    "parallel, shared norm, relu": gpt2(
        parallel_residual=True, shared_norm=True, activation="relu", positions="rotary"),
}
LOSSES = ("cross_entropy", "fp32_logits", "chunked", "fused_linear")


@pytest.fixture(autouse=True)
def plain_loops(monkeypatch):
    """The library of the CPU, whatever PyTorch this is."""
    ops = library("cpu")
    monkeypatch.setattr(fused, "fused_ops", lambda: ops)
    monkeypatch.setattr("gpuledger.torch_runs.reference_model.model.fused_ops", lambda: ops)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_pytorchs_kernels(name):
    model = MODELS[name]
    reference = loss_and_gradients(model, training())
    assert_same_step(
        reference, loss_and_gradients(model, training(kernels="fused"), reference["weights"]))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss):
    model = llama(logits_softcap=None if loss == "fused_linear" else 5.0)
    chunks = {"loss_chunks": 7} if loss in ("chunked", "fused_linear") else {}
    reference = loss_and_gradients(model, training())
    step = training(kernels="fused", loss=loss, **chunks)
    assert_same_step(reference, loss_and_gradients(model, step, reference["weights"]))


@pytest.mark.parametrize("model", (llama(), gpt2(dropout=0.3, embedding_dropout=0.3)))
@pytest.mark.parametrize("recompute", ("full", "selective"))
def test_recomputed_blocks_draw_the_same_mask(model, recompute):
    steps = [training(kernels="fused", recompute=r) for r in ("none", recompute)]
    plain = loss_and_gradients(model, steps[0])
    torch.manual_seed(3)
    results = []
    for step in steps:
        network = build(model, step)
        network.load_state_dict(plain["weights"])
        torch.manual_seed(3)
        loss = loss_of(network, model, step)
        loss.backward()
        results.append({"loss": loss.detach(),
                        "gradients": {n: p.grad for n, p in network.named_parameters()}})
    assert_same_step(*results)


@pytest.mark.parametrize("precision", ("bf16", "bf16-mixed"))
@pytest.mark.parametrize("name", ("llama", "gpt2"))
def test_16_bit_stays_near(name, precision):
    """Both are rounded, in other places: the loss agrees to two units of bf16's last place."""
    model = MODELS[name]
    losses = []
    for kernels in ("torch", "fused"):
        step = training(kernels=kernels, precision=precision)
        losses.append(loss_of(build(model, step), model, step).float())
    assert losses[0].isfinite()
    torch.testing.assert_close(losses[0], losses[1], rtol=2**-6, atol=0)


def test_adamw_where_a_fused_step_is_asked_for(monkeypatch):
    monkeypatch.setattr("gpuledger.torch_runs.kernels.load", lambda: library("cpu"))
    model = llama()
    chosen = {}
    for implementation in ("fused", "foreach"):
        step = training(kernels="fused", optimizer_implementation=implementation)
        chosen[implementation] = type(make_optimizer(build(model, step), step))
    assert chosen == {"fused": FusedAdamW, "foreach": torch.optim.AdamW}
