"""When Python lets go of each tensor: a program's parts flattened into steps."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.program.program import Op, Part
from gpuledger.program.tensor import Tensor


@dataclass(slots=True, eq=False)
class Step:
    """An operator in program order, with the tensors that Python lets go of right after it."""

    op: Op
    region: Part | None                     # the checkpoint around it
    layer: int | None                       # the decoder layer it belongs to
    group: Part | None                      # the outermost part around it: embedding, a block, head
    releases: list[Tensor]


def schedule(root: Part) -> list[Step]:
    """Each tensor is released at its last read, or at the end of the last part that holds it."""
    steps: list[Step] = []
    release: dict[Tensor, int] = {}          # in the order of release

    def touch(tensors: Iterable[Tensor], position: int) -> None:
        for tensor in tensors:
            release.pop(tensor, None)
            release[tensor] = position

    def visit(part: Part, region: Part | None, layer: int | None, group: Part | None) -> None:
        for item in part.body:
            if isinstance(item, Part):
                visit(item, item if item.checkpoint else region,
                      layer if item.layer is None else item.layer, group or item)
            else:
                touch(item.writes, len(steps))
                touch(item.reads, len(steps))
                steps.append(Step(item, region, layer, group, []))
        touch(part.locals, len(steps) - 1)
        touch(part.arguments, len(steps) - 1)

    visit(root, root if root.checkpoint else None, None, None)
    produced = {tensor for step in steps for tensor in step.op.writes}
    for tensor, position in release.items():
        if tensor in produced:
            steps[position].releases.append(tensor)
    return steps
