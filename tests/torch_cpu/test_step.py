"""The step on the CPU: every optimizer and recipe learns; the optimizers written here are right."""

from __future__ import annotations

import pytest
import torch
from small_records import gpt2, llama, training

from gpuledger.torch_runs.eight_bit_adam import EightBitAdamW, dynamic_codes
from gpuledger.torch_runs.optimizers import Lion, MasterWeights, optimizer_tensors
from gpuledger.torch_runs.step import BACKWARD, FORWARD, OPTIMIZER, ZERO_GRAD, Trainer

OPTIMIZERS = {
    "sgd": {"momentum": 0.9}, "adam": {}, "adamw": {"amsgrad": True}, "adafactor": {}, "lion": {},
    "muon": {}, "adamw-8bit": {}}


def loss_of(trainer: Trainer) -> float:
    with torch.no_grad():
        return float(trainer.network(trainer.tokens, trainer.targets))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(optimizer):
    torch.manual_seed(3)
    step = training(optimizer=optimizer, gradient_clipping=True, **OPTIMIZERS[optimizer])
    trainer = Trainer(gpt2(), step, 1, "cpu")
    before = loss_of(trainer)
    for _ in range(5):
        trainer.step()
    assert loss_of(trainer) < before


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-master", "bf16", "tf32"])
def test_every_recipe_lowers_the_loss(precision):
    torch.manual_seed(3)
    trainer = Trainer(llama(num_layers=1), training(precision=precision), 1, "cpu")
    before = loss_of(trainer)
    for _ in range(10):
        trainer.step()
    assert loss_of(trainer) < before
    dtypes = {p.dtype for p in trainer.network.parameters()}
    assert dtypes == {torch.float32 if precision in ("bf16-mixed", "tf32") else torch.bfloat16}


def test_boundaries_come_in_order_and_gradients_live_between_them():
    trainer = Trainer(gpt2(), training(), 2, "cpu")
    seen = []
    weight = trainer.network.head.norm.weight
    trainer.step(lambda instant: seen.append((instant, weight.grad is not None)))
    assert seen == [(FORWARD, False), (BACKWARD, True), (FORWARD, True), (BACKWARD, True),
                    (OPTIMIZER, True), (ZERO_GRAD, False)]


def test_kept_gradients_are_zeroed():
    trainer = Trainer(gpt2(), training(set_to_none=False), 1, "cpu")
    trainer.step()
    assert all(not p.grad.any() for p in trainer.network.parameters())


def test_masters_step_in_fp32_and_are_copied_back():
    trainer = Trainer(gpt2(), training(precision="bf16-master"), 1, "cpu")
    assert isinstance(trainer.optimizer, MasterWeights)
    trainer.step()
    for parameter, master in zip(
            trainer.optimizer.parameters, trainer.optimizer.masters, strict=True):
        assert master.dtype == torch.float32
        assert master.grad is None
        assert torch.equal(parameter, master.to(torch.bfloat16))
    # masters, two moments and a step for each
    assert len(optimizer_tensors(trainer.optimizer)) == 4 * len(trainer.optimizer.masters)


def test_lion_moves_by_the_sign_of_the_interpolated_momentum():
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = Lion([weight], betas=(0.5, 0.5))
    weight.grad = torch.tensor([2.0, -3.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-1e-4, 1e-4, 0.0]))
    torch.testing.assert_close(
        optimizer.state[weight]["momentum"], torch.tensor([1.0, -1.5, 0.0]))


def test_8_bit_states_are_two_codes_an_element_and_two_scales_a_block():
    large, small = torch.nn.Parameter(torch.randn(100, 50)), torch.nn.Parameter(torch.randn(40))
    optimizer = EightBitAdamW([large, small], lr=1e-3, weight_decay=0.0)
    large.grad, small.grad = torch.randn(100, 50), torch.randn(40)
    optimizer.step()
    kept = sum(t.numel() * t.element_size() for t in optimizer_tensors(optimizer))
    assert kept == 2 * (5000 + 4 * 20) + 8 * 40 + 2048      # ceil(5000 / 256) = 20 blocks


def test_8_bit_adamw_follows_adamw():
    torch.manual_seed(4)
    exact = torch.nn.Parameter(torch.randn(3, 4096))
    coarse = torch.nn.Parameter(exact.detach().clone())
    options = {"lr": 1e-2, "weight_decay": 0.01}
    optimizers = torch.optim.AdamW([exact], **options), EightBitAdamW([coarse], **options)
    start = exact.detach().clone()
    for _ in range(10):
        exact.grad = torch.randn(3, 4096) + 0.5
        coarse.grad = exact.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved = (exact - start).abs().mean()
    assert moved > 0.03
    assert (exact - coarse).abs().mean() < 0.05 * moved


def test_dynamic_codes():
    for signed in (True, False):
        codes = dynamic_codes(signed=signed)
        assert len(codes) == len(codes.unique()) == 256
        assert codes.max() == 1
        assert 0 in codes
        assert (codes.min() < -0.9) == signed
