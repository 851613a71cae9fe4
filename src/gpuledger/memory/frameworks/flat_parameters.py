"""FSDP1's flat parameters: the weights of a block, or of the rest of the model, in one tensor. [Y1]

Ref: torch/distributed/fsdp/_flat_param.py (_init_flat_param_and_metadata), PyTorch 2.14.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.program.sizes import Size, ceil_div
from gpuledger.program.tensor import ITEMSIZE, Tensor

ALIGNMENT_BYTES = 16
OF_ROOT = ("token.", "position.", "embedding norm.", "final norm.", "head.")


@dataclass(frozen=True)
class Layout:
    """How a flat parameter is laid out and divided.

    ways: ranks over which it is divided; aligned: each parameter begins at 16 bytes of `dtype`, and the
    whole divides by `ranks`, divided or not.
    """

    ranks: int
    ways: int
    dtype: str
    aligned: bool = False

    def segments(self, weights: Sequence[Tensor]) -> list[tuple[Tensor | None, Size]]:
        """(weight, or None for padding; elements) in order."""
        segments: list[tuple[Tensor | None, Size]] = []
        total: Size = 0
        step = ALIGNMENT_BYTES // ITEMSIZE[self.dtype]
        for weight in weights:
            missing = -total % step if self.aligned else 0
            if missing:
                segments.append((None, missing))
            segments.append((weight, weight.numel))
            total = total + missing + weight.numel
        if self.aligned and total % self.ranks:
            segments.append((None, -total % self.ranks))
        return segments

    def elements(self, weights: Sequence[Tensor]) -> Size:
        """Of the flat parameter."""
        return sum(elements for _, elements in self.segments(weights))

    def shard(self, weights: Sequence[Tensor]) -> Size:
        """Elements that each rank stores; the last one's may be padding."""
        return ceil_div(self.elements(weights), self.ways)

    def owned(self, weights: Sequence[Tensor], rank: int) -> list[tuple[Tensor, Size]]:
        """The parts of weights that lie in a rank's shard."""
        shard, begin = self.shard(weights), 0
        low, high = rank * shard, (rank + 1) * shard
        parts = []
        for weight, elements in self.segments(weights):
            inside = min(begin + elements, high) - max(begin, low)
            if weight is not None and inside > 0:
                parts.append((weight, inside))
            begin = begin + elements
        return parts


def groups_of(weights: Sequence[Tensor]) -> list[list[Tensor]]:
    """The root's weights first, then those of each block, in order."""
    root = [weight for weight in weights if weight.name.startswith(OF_ROOT)]
    blocks: list[list[Tensor]] = []
    seen: set[str] = set()
    for weight in weights:
        if weight.name.startswith(OF_ROOT):
            continue
        if not blocks or weight.name in seen:
            blocks.append([])
            seen = set()
        blocks[-1].append(weight)
        seen.add(weight.name)
    return [root, *blocks]
