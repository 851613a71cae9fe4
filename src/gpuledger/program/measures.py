"""What else falls out of a program: parameters, FLOPs, and the bytes that autograd keeps for
backward."""
from __future__ import annotations

from collections.abc import Iterator

from .model import Program
from .program import Op, Part
from .sizes import Size


def parameter_count(program: Program) -> Size:
    """Elements of all weights; a tied one counts once."""
    return sum(weight.numel for weight in program.weights)


def forward_flops(part: Part) -> Size:
    """Products and attention of one forward pass, multiply and add counted apart. [F23]"""
    return sum(op.flops for op in part.ops() if not op.only_recomputed)


def backward_flops(part: Part) -> Size:
    """Products and attention of one backward pass, without what checkpoints run again. [F23]"""
    return sum(op.backward_flops for op in part.ops() if not op.only_recomputed)


def recomputed_flops(part: Part) -> Size:
    """What checkpoints run again. [F24]"""
    return sum(op.flops for region in checkpoints(part) for op in run_again(region))


def hardware_flops(part: Part) -> Size:
    """Forward, backward, and forward again where it is recomputed. [F24]"""
    return forward_flops(part) + backward_flops(part) + recomputed_flops(part)


def checkpoints(part: Part) -> Iterator[Part]:
    """The outermost parts that are run again in the backward pass."""
    for item in part.body:
        if isinstance(item, Part):
            if item.checkpoint:
                yield item
            else:
                yield from checkpoints(item)


def run_again(region: Part) -> Iterator[Op]:
    """A recomputed part's operators up to the last that saves something; that one only if it is an
    output.

    Ref: torch/utils/checkpoint.py (early stop): an input is saved before its operator runs.
    """
    kept = region.kept_ops()
    ops = list(region.ops())
    last = max(position for position, op in enumerate(ops) if op.saves)
    yield from (op for op in ops[:last] if op not in kept)
    if ops[last].saves_an_output and ops[last] not in kept:
        yield ops[last]


def saved_bytes(part: Part, *, arguments: bool = True) -> Size:
    """Bytes of the distinct storages that nodes of this part keep for their backward. [S17]

    Parameters and tables are not counted: they live anyway. arguments: count those of the part (a
    block's input), where a node of it keeps them. A recomputed part counts as if it were not.
    """
    nodes = [op for op in part.ops() if op.gradients and not op.only_recomputed]
    kept = {tensor.storage for op in nodes for tensor in op.saves}
    if not arguments:
        kept -= {tensor.storage for tensor in part.arguments}
    return sum(storage.nbytes for storage in kept
               if storage.role not in ("parameter", "table"))
