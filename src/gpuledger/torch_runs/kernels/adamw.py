"""AdamW over all tensors in few launches, without temporaries. [FK11]"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class FusedAdamW(torch.optim.Optimizer):
    """torch.optim.AdamW's update. Two states like the parameter, in its dtype or state_dtype.

    state_dtype may be float32 beside 16-bit parameters. The step count is a Python integer.
    """

    def __init__(self, params: Iterable[Any], ops: Any, lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, state_dtype: torch.dtype | None = None) -> None:
        self.ops, self.state_dtype = ops, state_dtype
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps,
                                  "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for (step, *_), params in self._alike(group).items():
                self._update(group, params, step)
        return loss

    def _alike(self, group: dict[str, Any]) -> dict[tuple[Any, ...], list[Tensor]]:
        """Parameters with a gradient by (step, dtype, device), their states made and advanced."""
        alike: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
        for param in group["params"]:
            if param.grad is None:
                continue
            state = self.state[param]
            if not state:
                state["step"] = 0
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(param, dtype=self.state_dtype)
            state["step"] += 1
            alike[state["step"], param.dtype, param.device].append(param)
        return alike

    def _update(self, group: dict[str, Any], params: list[Tensor], step: int) -> None:
        states = [self.state[param] for param in params]
        self.ops.adamw_(params, [param.grad for param in params],
                        [state["exp_avg"] for state in states],
                        [state["exp_avg_sq"] for state in states],
                        group["lr"], *group["betas"], group["eps"], group["weight_decay"], step)
