"""The optimizer of a `Training` record, as a user would build it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpuledger.config.frameworks import ZeroRedundancyOptions
from gpuledger.config.fused_kernels import steps_with_own_adamw
from gpuledger.config.training import Training
from gpuledger.errors import InputError

from .eight_bit_adam import EightBitAdamW

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0


def make_optimizer(
    network: nn.Module, training: Training, shared: ZeroRedundancyOptions | None = None
) -> Optimizer | MasterWeights:
    """The optimizer of all parameters; with bf16-master it steps fp32 copies of them.

    shared: ZeroRedundancyOptimizer with these options divides the states over the ranks.
    Raises:
        InputError: this PyTorch does not have the optimizer, or it cannot be shared.
    """
    make = MAKERS[training.optimizer] if shared is None else partial(make_shared, options=shared)
    if training.precision == "bf16-master":
        return MasterWeights(network, lambda named: make(named, training))
    return make(list(network.named_parameters()), training)


class MasterWeights:
    """fp32 copies of 16-bit parameters: gradients are copied up, the copies step, back."""

    def __init__(self, network: nn.Module, make: Callable[[list[tuple[str, Tensor]]], Optimizer]):
        named = list(network.named_parameters())
        self.parameters = [parameter for _, parameter in named]
        self.masters = [p.detach().to(torch.float32).requires_grad_() for p in self.parameters]
        names = (name for name, _ in named)
        self.inner = make(list(zip(names, self.masters, strict=True)))

    @torch.no_grad()
    def step(self) -> None:
        """All fp32 gradients live from here to the end of the step."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None:
                master.grad = parameter.grad.to(torch.float32)
        self.inner.step()
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.copy_(master)
            master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The gradients of the 16-bit parameters."""
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                parameter.grad.zero_()


class Together(Optimizer):
    """Several optimizers, each with its own parameters, that step one after the other."""

    def __init__(self, members: list[Optimizer]):
        self.members = members
        super().__init__(
            [p for m in members for group in m.param_groups for p in group["params"]], {}
        )

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for member in self.members:
            member.step()


class Lion(Optimizer):
    """Sign of an interpolated momentum, one state per parameter, parameter by parameter.

    Ref: Symbolic Discovery of Optimization Algorithms (2302.06675) algorithm 2. The momentum is
    cloned and then added to out of place, as in the public PyTorch implementation: two
    temporaries.
    """

    def __init__(self, parameters: Iterable[Tensor], betas: tuple[float, float] = (0.9, 0.99)):
        super().__init__(parameters, {"betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, *group["betas"])

    def update(self, parameter: Tensor, gradient: Tensor, beta1: float, beta2: float) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"]
        parameter.mul_(1 - LEARNING_RATE * WEIGHT_DECAY)
        direction = momentum.clone().mul_(beta1).add(gradient, alpha=1 - beta1).sign_()
        parameter.add_(direction, alpha=-LEARNING_RATE)
        momentum.mul_(beta2).add_(gradient, alpha=1 - beta2)


Named = list[tuple[str, Tensor]]
PLAIN = ("sgd", "adam", "adamw")


def tensors(named: Named) -> list[Tensor]:
    return [tensor for _, tensor in named]


def implementation(training: Training) -> dict[str, Any]:
    """PyTorch's keywords, explicit in every case."""
    kind = training.optimizer_implementation
    return {"foreach": kind == "foreach", "fused": kind == "fused"}


def plain(training: Training) -> tuple[type[Optimizer], dict[str, Any]]:
    """SGD, Adam or AdamW of torch.optim, and its keywords."""
    if training.optimizer == "sgd":
        own: dict[str, Any] = {"momentum": training.momentum}
        return torch.optim.SGD, {"lr": LEARNING_RATE, **own, **implementation(training)}
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    own = {"amsgrad": training.amsgrad}
    return kind, {"lr": LEARNING_RATE, **own, **implementation(training)}


def make_plain(named: Named, training: Training) -> Optimizer:
    if steps_with_own_adamw(training):
        from .kernels import load
        from .kernels.adamw import FusedAdamW

        return FusedAdamW(tensors(named), load(), lr=LEARNING_RATE)
    kind, keywords = plain(training)
    return kind(tensors(named), **keywords)


def make_shared(named: Named, training: Training, options: ZeroRedundancyOptions) -> Optimizer:
    """ZeroRedundancyOptimizer: each rank has the states of its part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if training.optimizer not in PLAIN:
        raise InputError(
            f"optimizer {training.optimizer} is not shared by ZeroRedundancyOptimizer here",
            f"use one of: {', '.join(PLAIN)}")
    kind, keywords = plain(training)
    return ZeroRedundancyOptimizer(tensors(named), optimizer_class=kind, **keywords,
        parameters_as_bucket_view=options.parameters_as_bucket_view)


def adafactor(named: Named, training: Training) -> Optimizer:
    return torch.optim.Adafactor(
        tensors(named), lr=LEARNING_RATE, foreach=training.optimizer_implementation == "foreach"
    )


def lion(named: Named, training: Training) -> Optimizer:
    return Lion(tensors(named))


def muon(named: Named, training: Training) -> Optimizer:
    """Muon for the matrices of the blocks; AdamW for embedding, head, norms and biases."""
    if not hasattr(torch.optim, "Muon"):
        raise InputError(
            f"optimizer muon needs PyTorch 2.9 or later, this is {torch.__version__}",
            "use adamw, or a newer PyTorch",
        )
    matrices = [t for name, t in named if t.dim() == 2 and name.startswith("blocks.")]
    chosen = {id(t) for t in matrices}
    others = [t for _, t in named if id(t) not in chosen]
    return Together(
        [
            torch.optim.Muon(matrices, lr=LEARNING_RATE),
            torch.optim.AdamW(others, lr=LEARNING_RATE, **implementation(training)),
        ]
    )


def adamw_8bit(named: Named, training: Training) -> Optimizer:
    """bitsandbytes where it is installed, otherwise our own AdamW with the same states."""
    if importlib.util.find_spec("bitsandbytes"):
        import bitsandbytes  # type: ignore[import-not-found,unused-ignore]

        return bitsandbytes.optim.AdamW8bit(tensors(named), lr=LEARNING_RATE)
    return EightBitAdamW(tensors(named), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


MAKERS: dict[str, Callable[[Named, Training], Optimizer]] = {
    "sgd": make_plain,
    "adam": make_plain,
    "adamw": make_plain,
    "adafactor": adafactor,
    "lion": lion,
    "muon": muon,
    "adamw-8bit": adamw_8bit,
}


def optimizer_tensors(optimizer: Optimizer | MasterWeights) -> list[Tensor]:
    """Every tensor that the optimizer keeps between steps: states, tables, fp32 master copies."""
    if isinstance(optimizer, MasterWeights):
        return [*optimizer.masters, *optimizer_tensors(optimizer.inner)]
    if isinstance(optimizer, Together):
        return [t for member in optimizer.members for t in optimizer_tensors(member)]
    inner = getattr(optimizer, "optim", optimizer)          # of a ZeroRedundancyOptimizer
    states = [value for state in inner.state.values() for value in state.values()]
    tables = list(getattr(optimizer, "name2qmap", {}).values())  # code tables of 8-bit optimizers
    return [value for value in [*states, *tables] if isinstance(value, Tensor)]
