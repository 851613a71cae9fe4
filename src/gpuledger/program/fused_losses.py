"""torch.nn.functional.linear_cross_entropy in chunks: gradients are formed in the forward pass."""
from __future__ import annotations

from .operators import LinearWeights
from .program import INCOMING, Gradient, Op, Tape
from .sizes import ceil_div, product
from .tensor import Tensor


def fused_linear_cross_entropy(tape: Tape, weights: LinearWeights, x: Tensor, chunks: int) -> Tensor:
    """x: (b, s, h) -> the loss. Keeps d x, d W (and d c) instead of any logits. [S13]

    Ref: torch/nn/modules/linear_cross_entropy.py (2.14).
    """
    h = x.shape[-1]
    rows, v = product(x.shape[:-1]), weights.weight.shape[0]
    chunk = ceil_div(rows, chunks)
    loss = Tensor("loss", (), x.dtype)
    dx = Tensor("d(x) in forward", (rows, h), x.dtype)
    dw = Tensor("d(W) in forward", (v, h), weights.weight.dtype, "gradient")
    logits = Tensor("chunk of logits", (chunk, v), x.dtype)
    gradients: dict[Tensor, Gradient] = {x: dx.view("dX", x.shape), weights.weight: INCOMING}
    reads: tuple[Tensor, ...] = (x, weights.weight)
    saves: tuple[Tensor, ...] = (dx, dw)
    forward = (+dx, +dw, +logits, -logits, +loss)
    gradients[weights.weight] = dw.view("dW", (v, h))
    if weights.offset is not None:
        dc = Tensor("d(c) in forward", (v,), weights.offset.dtype, "gradient")
        reads, saves = (*reads, weights.offset), (*saves, dc)
        forward = (+dx, +dw, +dc, +logits, -logits, +loss)
        gradients[weights.offset] = dc.view("dC", (v,))
    return tape.append(Op("linear_cross_entropy", reads, (loss,), saves=saves, forward=forward,
                          gradients=gradients, product=True, flops=2 * rows * h * v,
                          backward_flops=4 * rows * h * v, equation="S13"))
