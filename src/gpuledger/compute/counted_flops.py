"""FLOPs of a step as torch.utils.flop_counter counts them, from the same program as the memory."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.memory.schedule import schedule
from gpuledger.program.device import Device
from gpuledger.program.model import build
from gpuledger.program.program import Op, Part

UNSEEN = "linear_cross_entropy"           # PyTorch's; gpuledger's own tells the counter


def counted_flops(
    model: Model, training: Training, num_microbatches: int, device: Device
) -> int:
    """Products and attention of one rank's step: forward, backward, and what checkpoints run again.

    Attention counts the whole square, and nothing of the optimizer or of elementwise operators
    counts. PyTorch's fused_linear loss is one operator that the counter does not know: it counts
    nothing. A checkpoint stops at the last tensor that is wanted, so its last product may not run
    again. [V3] Ref: torch/utils/flop_counter.py.
    """
    program = build(model, training, device)
    once = sum(op.flops + op.backward_flops for op in program.root.ops()
               if not op.only_recomputed and op.name != UNSEEN)
    again = sum(op.flops for region in checkpoints(program.root) for op in run_again(region))
    return int(once + again) * num_microbatches


def checkpoints(part: Part) -> Iterator[Part]:
    """The outermost parts that are run again in the backward pass."""
    for item in part.body:
        if isinstance(item, Part):
            if item.checkpoint:
                yield item
            else:
                yield from checkpoints(item)


def run_again(region: Part) -> Iterator[Op]:
    """Up to the last operator that saves; that one too if what it saves is its output."""
    ops = [step.op for step in schedule(region)]
    last = max(i for i, op in enumerate(ops) if op.saves)
    yield from ops[:last]
    if ops[last].saves_an_output:
        yield ops[last]
