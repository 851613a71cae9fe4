"""Kernels and memory traffic of PyTorch's own operators, counted from the step program.

The program knows each operator's reads, writes, saved tensors and gradients; what they move is the
bytes of those tensors. Products and fused attention kernels are timed elsewhere and only counted as
launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...config.fused_kernels import FusedKernels
from ...config.model import Model
from ...config.training import Training
from ...program.block import block
from ...program.device import Device
from ...program.embedding import embedding
from ...program.head import head
from ...program.local import Local
from ...program.precision import PRECISIONS
from ...program.program import Op, Part, Script, Tape
from ...program.sizes import Size
from ...program.tensor import Tensor
from .inputs import Counted, Traffic


def counted(model: Model, training: Training, *, tp: Size = 1, cp: Size = 1) -> Counted:
    """One micro-batch on one rank. Raises InputError where sizes do not divide."""
    return Counted(
        block_traffic(model, training, tp=tp, cp=cp),
        head_traffic(model, training, tp=tp, cp=cp),
        training.loss == "chunked",
    )


def block_traffic(model: Model, training: Training, *, tp: Size = 1, cp: Size = 1) -> Traffic:
    """One decoder block on one rank. [T4] Raises InputError where sizes do not divide."""
    tape, local, x, _ = start(model, training, tp, cp)
    block(tape, 0, x, model, training, local)
    return count(tape.root.body[-1])


def head_traffic(model: Model, training: Training, *, tp: Size = 1, cp: Size = 1) -> Traffic:
    """Final norm, head and loss on one rank. [T7]"""
    tape, local, x, token_weight = start(model, training, tp, cp)
    before = len(tape.root.body)
    head(tape, x, model, training, local, token_weight if model.tie_embeddings else None)
    return count(Part("head", body=tape.root.body[before:]))


def start(model: Model, training: Training, tp: Size, cp: Size) -> tuple[Tape, Local, Tensor, Tensor]:
    """A tape that holds the embedding, and its output."""
    tape = Tape(PRECISIONS[training.precision], Device(), FusedKernels.of(model, training))
    local = Local.of(model, training, tp, cp)
    x, token_weight = embedding(tape, model, training, local)
    return tape, local, x, token_weight


def count(part: Part | Op) -> Traffic:
    """All operators inside. A tensor with several readers has their gradients summed."""
    assert isinstance(part, Part)
    ops = [op for op in part.ops() if not op.only_recomputed]
    forward: list[Size] = [0, 0]
    backward: list[Size] = [0, 0]
    for op in ops:
        for total, (num_bytes, kernels) in ((forward, forward_of(op)), (backward, backward_of(op))):
            total[0] += num_bytes
            total[1] += kernels
    for tensor, readers in gradient_readers(ops).items():
        backward[0] += 3 * (readers - 1) * tensor.nbytes
        backward[1] += readers - 1
    return Traffic(forward[0], backward[0], forward[1], backward[1])


def computes_elsewhere(op: Op) -> bool:
    """A product or a fused attention kernel: its time is not its traffic."""
    return bool(op.product or op.flops)


def forward_of(op: Op) -> tuple[Size, int]:
    """(bytes, kernels): every read and every write that is no view; temporaries are written and
    read."""
    written = [t for t in op.writes if t.view_of is None]
    if not written:
        return 0, 0
    if computes_elsewhere(op):
        return 0, 1
    temporaries = [
        m.tensor
        for m in op.forward_moves
        if m.tensor not in op.writes and m.tensor.role != "scratch"
    ]
    return total_bytes((*op.reads, *written, *temporaries)), 1


def backward_of(op: Op) -> tuple[Size, int]:
    """(bytes, kernels): the incoming gradient, what was saved, what is written, temporaries read
    back."""
    moved, summed = touched(op.backward), touched(op.reduce)
    new = [t for t in op.gradients.values() if isinstance(t, Tensor)]
    if not new:
        return 0, 0
    incoming = op.writes[:1]
    if computes_elsewhere(op):
        sums = total_bytes((*incoming, *summed)) if summed else 0
        return sums, len(new) if op.product else 2
    return total_bytes((*incoming, *op.saves, *moved, *summed)), 1 + (1 if summed else 0)


def touched(script: Script) -> list[Tensor]:
    """What a node allocates (and writes) or frees (and has read), for a contiguous incoming
    gradient."""
    moves = script(None) if callable(script) else script
    return [move.tensor for move in moves if move.tensor.role != "scratch"]


def gradient_readers(ops: Iterable[Op]) -> Counter[Tensor]:
    """How many operators hand a gradient to each activation."""
    readers: Counter[Tensor] = Counter()
    for op in ops:
        for tensor in op.gradients:
            if tensor.role == "activation":
                readers[tensor] += 1
    return readers


def total_bytes(tensors: Iterable[Tensor]) -> Size:
    """Bytes of these tensors, a storage that appears twice counted once per appearance."""
    return sum(t.nbytes for t in tensors)
