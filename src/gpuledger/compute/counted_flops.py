"""FLOPs of a step as torch.utils.flop_counter counts them, from the same program as the memory."""

from __future__ import annotations

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.measures import recomputed_flops
from gpuledger.program.model import build

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
    return int(once + recomputed_flops(program.root)) * num_microbatches
