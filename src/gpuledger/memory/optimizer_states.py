"""What each optimizer keeps per parameter between steps: tensors, in the order in which it makes them."""
from __future__ import annotations

from gpuledger.config.fused_kernels import steps_with_own_adamw
from gpuledger.config.training import Training
from gpuledger.program.sizes import Size, ceil_div
from gpuledger.program.tensor import Tensor

SMALLEST_QUANTIZED = 4096                  # elements; smaller tensors keep fp32 states (bitsandbytes)
QUANTIZATION_BLOCK = 256                   # elements that share one fp32 scale (bitsandbytes)


def optimizer_states(weight: Tensor, training: Training) -> tuple[Tensor, ...]:
    """States of one parameter, in its own dtype where the optimizer does not say otherwise. [O1]-[O6]

    Ref: torch/optim/{sgd,adam,adafactor,_muon}.py; Lion 2302.06675; bitsandbytes/optim/optimizer.py.
    """
    kind: str = training.optimizer
    if kind == "muon":
        kind = "momentum" if muon_updates(weight) else "adamw"
    if kind == "sgd":
        kind = "momentum" if training.momentum else "nothing"
    return STATES[kind](weight, training)


def muon_updates(weight: Tensor) -> bool:
    """Muon takes the matrices of the blocks; AdamW the embeddings, the head, norms and biases."""
    outside = ("token.", "position.", "head.")
    return len(weight.shape) == 2 and not weight.name.startswith(outside)


def nothing(weight: Tensor, training: Training) -> tuple[Tensor, ...]:
    return ()


def momentum(weight: Tensor, training: Training) -> tuple[Tensor, ...]:
    """One state of the parameter's size. [O2]"""
    return (weight.like("momentum"),)


def adam(weight: Tensor, training: Training) -> tuple[Tensor, ...]:
    """First and second moment, the maximum of the second with amsgrad; fused: a step counter on the GPU. [O1]"""
    on_device = training.optimizer_implementation == "fused" and not steps_with_own_adamw(training)
    step = (Tensor("step", (), "float32"),) if on_device else ()
    maximum = (weight.like("max_exp_avg_sq"),) if training.amsgrad else ()
    return (*step, weight.like("exp_avg"), weight.like("exp_avg_sq"), *maximum)


def adafactor(weight: Tensor, training: Training) -> tuple[Tensor, ...]:
    """A matrix keeps the mean squares of its rows and of its columns; a vector keeps its own. [O3]"""
    if len(weight.shape) < 2:
        return (weight.like("variance"),)
    *outer, rows, columns = weight.shape
    return (Tensor("row_var", (*outer, rows, 1), weight.dtype),
            Tensor("col_var", (*outer, 1, columns), weight.dtype))


def adamw_8bit(weight: Tensor, training: Training) -> tuple[Tensor, ...]:
    """Two one-byte states with a scale per block of 256; small tensors stay in fp32. [O5]"""
    n: Size = weight.numel
    if n < SMALLEST_QUANTIZED:
        return weight.like("state1", "float32"), weight.like("state2", "float32")
    blocks = ceil_div(n, QUANTIZATION_BLOCK)
    return (weight.like("state1", "uint8"), weight.like("state2", "uint8"),
            Tensor("absmax1", (blocks,), "float32"), Tensor("absmax2", (blocks,), "float32"))


STATES = {"nothing": nothing, "momentum": momentum, "adam": adam, "adamw": adam,
          "adafactor": adafactor, "lion": momentum, "adamw-8bit": adamw_8bit}
