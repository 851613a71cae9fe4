"""AdamW with 8-bit states in PyTorch's own operators: the states are those of bitsandbytes.

A parameter of 4,096 elements or more keeps two uint8 codes per element and one fp32 scale per
block of 256 elements and state; a smaller one keeps two fp32 states. Two tables of 256 fp32 codes
are shared. The arithmetic runs in fp32 on slices, so its temporaries stay small; bitsandbytes has
none, it runs in one kernel.

Ref: 8-bit Optimizers via Block-wise Quantization (2110.02861) sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

BLOCK = 256
SMALLEST_QUANTIZED = 4096  # elements
SLICE = 4096 * BLOCK  # elements updated at a time
CODES = 256


class EightBitAdamW(Optimizer):
    """AdamW whose two moments are block-wise quantized to 8 bit with dynamic codes."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        self.name2qmap: dict[str, Tensor] = {}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """One parameter, whole if it is small, otherwise slice by slice of whole blocks."""
        state = self.state[parameter]
        if not state:
            self.start(parameter, state)
        state["step"] += 1
        weights, gradients = parameter.view(-1), gradient.reshape(-1)
        if "absmax1" not in state:
            first, second = state["state1"].view(-1), state["state2"].view(-1)
            adamw_(weights, gradients, first, second, state["step"], group)
            return
        for begin in range(0, parameter.numel(), SLICE):
            part = slice(begin, begin + SLICE)
            first, second = self.dequantize(state, "1", part), self.dequantize(state, "2", part)
            adamw_(weights[part], gradients[part], first, second, state["step"], group)
            self.quantize(state, "1", part, first)
            self.quantize(state, "2", part, second)

    def start(self, parameter: Tensor, state: dict[str, Any]) -> None:
        """States of zero; the code tables with the first quantized parameter."""
        state["step"] = 0
        quantized = parameter.numel() >= SMALLEST_QUANTIZED
        dtype = torch.uint8 if quantized else torch.float32
        state["state1"] = torch.zeros_like(parameter, dtype=dtype)
        state["state2"] = torch.zeros_like(parameter, dtype=dtype)
        if not quantized:
            return
        if not self.name2qmap:
            self.name2qmap["1"] = dynamic_codes(signed=True).to(parameter.device)
            self.name2qmap["2"] = dynamic_codes(signed=False).to(parameter.device)
        blocks = -(-parameter.numel() // BLOCK)
        state["absmax1"] = torch.zeros(blocks, dtype=torch.float32, device=parameter.device)
        state["absmax2"] = torch.zeros(blocks, dtype=torch.float32, device=parameter.device)

    def dequantize(self, state: dict[str, Any], which: str, part: slice) -> Tensor:
        """fp32 values of a slice: code times the scale of its block."""
        codes = state[f"state{which}"].view(-1)[part]
        values = self.name2qmap[which][codes.long()]
        return values.mul_(
            self.scales(state, which, part).repeat_interleave(BLOCK)[: codes.numel()]
        )

    def quantize(self, state: dict[str, Any], which: str, part: slice, values: Tensor) -> None:
        """Writes the nearest codes and the blocks' largest magnitudes of a slice."""
        scales = self.scales(state, which, part)
        padding = scales.numel() * BLOCK - values.numel()
        blocks = torch.nn.functional.pad(values, (0, padding)).view(-1, BLOCK)
        scales.copy_(blocks.abs().amax(dim=1))
        normed = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        table = self.name2qmap[which]
        between = (table[1:] + table[:-1]) / 2
        codes = torch.bucketize(normed, between).view(-1)[: values.numel()]
        state[f"state{which}"].view(-1)[part] = codes.to(torch.uint8)

    def scales(self, state: dict[str, Any], which: str, part: slice) -> Tensor:
        """The slice's blocks of absmax, a view."""
        scales: Tensor = state[f"absmax{which}"]
        return scales[part.start // BLOCK : -(-part.stop // BLOCK)]


def adamw_(
    weights: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    group: dict[str, Any],
) -> None:
    """One update in place; first and second are the fp32 moments. Ref: 1711.05101 algorithm 2."""
    beta1, beta2 = group["betas"]
    gradients = gradients.float()
    first.lerp_(gradients, 1 - beta1)
    second.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
    size = group["lr"] / (1 - beta1**step)
    scale = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
    weights.mul_(1 - group["lr"] * group["weight_decay"])
    weights.add_((first / scale).mul_(-size).to(weights.dtype))


def dynamic_codes(*, signed: bool) -> Tensor:
    """(256) fp32, ascending: seven decades up to 1, each twice as finely divided as the last.

    Ref: 2110.02861 section 2.1 (dynamic tree quantization); 0 and 1 are codes.
    """
    decades, codes = 7, [0.0, 1.0]
    for decade in range(decades):
        steps = 2**decade if signed else 2 ** (decade + 1)
        edges = torch.linspace(0.1, 1, steps + 1)
        means = ((edges[1:] + edges[:-1]) / 2 * 10.0 ** (decade - decades + 1)).tolist()
        codes += means + [-mean for mean in means] if signed else means
    return torch.tensor(sorted(codes), dtype=torch.float32)
