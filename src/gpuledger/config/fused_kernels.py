"""`training.kernels: fused`: which of gpuledger's kernels run, and what stays PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..errors import Problem
from .model import Model
from .parallelism import Parallelism
from .training import Training

ActivationKernel = Literal["bias_gelu_linear", "swiglu_linear", "swiglu"]
LossKernel = Literal["in place", "chunked in place", "linear"]


@dataclass(frozen=True)
class FusedKernels:
    """The kernels of one run, for the reference model and the program alike.

    norm: RMSNorm or LayerNorm, with the residual add before it where a norm follows the sum.
    activation: bias + GELU or SwiGLU; with `_linear` the down-projection recomputes its output.
    loss: over logits in place, the same for each checkpointed piece, or the chunked linear one.
    """

    norm: bool = False
    activation: ActivationKernel | None = None
    loss: LossKernel | None = None
    rotary: bool = False
    dropout: bool = False
    adamw: bool = False

    @classmethod
    def of(cls, model: Model, training: Training) -> FusedKernels:
        """None of them with kernels: torch."""
        if training.kernels != "fused":
            return cls()
        return cls(
            norm=True,
            activation=_activation(model),
            loss=_loss(model, training),
            rotary=model.positions == "rotary",
            dropout=True,
            adamw=steps_with_own_adamw(training),
        )


PYTORCHS_KERNELS = FusedKernels()


def steps_with_own_adamw(training: Training) -> bool:
    """The multi-tensor AdamW: no amsgrad, and only where a fused optimizer is asked for."""
    return (
        training.kernels == "fused"
        and training.optimizer == "adamw"
        and training.optimizer_implementation == "fused"
        and not training.amsgrad
    )


def _activation(model: Model) -> ActivationKernel | None:
    if model.activation in ("gelu", "gelu_tanh"):
        return "bias_gelu_linear"
    if model.activation == "swiglu":
        return "swiglu" if model.bias.mlp_down else "swiglu_linear"
    return None


def _loss(model: Model, training: Training) -> LossKernel | None:
    if training.loss == "chunked":
        return "chunked in place"
    if training.loss == "fused_linear":
        return None if model.bias.head else "linear"
    return None if training.keep_logits else "in place"


def fallbacks(model: Model, training: Training) -> Iterator[str]:
    """One sentence for each part of a run with kernels: fused that PyTorch's kernels do."""
    if training.kernels != "fused":
        return
    chosen = FusedKernels.of(model, training)
    if chosen.activation is None:
        yield f"activation {model.activation}: no fused kernel has it"
    if chosen.activation == "swiglu":
        yield "the down-projection: it has a bias, so it keeps its input, SwiGLU's output"
    if chosen.loss is None:
        reason = ("keep_logits wants the logits, which the fused loss overwrites"
                  if training.keep_logits else "the fused linear loss has no bias of the head")
        yield f"loss {training.loss}: {reason}"
    if model.attention_dropout and training.attention != "eager":
        yield f"dropout inside attention {training.attention}: the attention kernel's own"
    if not chosen.adamw:
        yield f"optimizer: {_why_no_adamw(training)}"


def _why_no_adamw(training: Training) -> str:
    if training.optimizer != "adamw":
        return f"the fused step is AdamW's, not {training.optimizer}'s"
    if training.amsgrad:
        return "the fused AdamW has no amsgrad"
    return (f"optimizer_implementation is {training.optimizer_implementation}; "
            "fused takes the multi-tensor AdamW")


def division_problems(parallel: Parallelism, training: Training) -> Iterator[Problem]:
    """Fused kernels are accounted for, and measured, on whole layers of one framework-less rank."""
    if training.kernels != "fused":
        return
    axes = {"tp": parallel.tp, "pp": parallel.pp, "cp": parallel.cp}
    for axis, ways in axes.items():
        if ways > 1:
            yield Problem(f"kernels: fused with {axis} = {ways} is not modelled yet",
                          f"set {axis}: 1, or kernels: torch")
    if parallel.framework not in (None, "single"):
        yield Problem(f"kernels: fused with framework {parallel.framework} is not modelled yet",
                      "leave framework out, or set kernels: torch")
