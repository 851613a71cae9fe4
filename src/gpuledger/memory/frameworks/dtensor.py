"""What PyTorch's DTensor adds to arithmetic on shards."""
from __future__ import annotations

from collections.abc import Sequence

from gpuledger.program.tensor import Tensor

from ..gradients import coefficient, foreach_norm
from ..update_rules import Moves


def clip(gradients: Sequence[Tensor]) -> Moves:
    """clip_grad_norm_ of sharded gradients. [W10]

    The stack of local norms is copied, reduced out of place and copied once more before its own norm
    is taken. Ref: torch/nn/utils/clip_grad.py, torch/distributed/tensor/_redistribute.py.
    """
    dtype, count = gradients[0].dtype, len(gradients)
    moves, norms = foreach_norm(gradients)
    stack, copied, reduced, whole = (
        Tensor(name, (count,), dtype, "scratch")
        for name in ("stack of norms", "copied norms", "reduced norms", "norms of all ranks"))
    total = Tensor("total norm", (), dtype, "scratch")
    yield from (*moves, +stack, +copied, +reduced, +whole, -copied, -reduced, +total, -whole, -stack)
    yield from (-norm for norm in norms)
    yield from coefficient(total)
