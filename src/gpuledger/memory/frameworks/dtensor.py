"""What PyTorch's DTensor adds to arithmetic on shards."""
from __future__ import annotations

from collections.abc import Sequence

from gpuledger.program.tensor import Move, Tensor

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


def clip_of_divided_layers(gradients: Sequence[Tensor], axes: tuple[str, ...]) -> Moves:
    """The same where DTensor divides layers too: norms are reduced over one axis after the other. [W10]

    First the norms of what tensor parallelism does not divide become parts of a sum: a copy of each.
    """
    dtype, count = gradients[0].dtype, len(gradients)
    moves, norms = foreach_norm(gradients)
    parts = [Tensor("part of a norm", (), dtype, "scratch") for g in gradients if g.replicated]
    stack = Tensor("stack of norms", (count,), dtype, "scratch")
    total = Tensor("total norm", (), dtype, "scratch")
    yield from (*moves, *(+part for part in parts), +stack, *(-part for part in parts))
    before: tuple[Move, ...] = ()
    for axis in axes:
        copied, reduced, root = (Tensor(f"{what} norms, {axis} axis", (count,), dtype, "scratch")
                                 for what in ("copied", "reduced", "summed"))
        yield from (+copied, +reduced, +root, *before, -copied, -reduced)
        before = (-root,)
    yield from (+total, *before, -stack)
    yield from (-norm for norm in norms)
    yield from coefficient(total)
