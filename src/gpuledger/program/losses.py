"""From the final norm's output (b, s, h) to the loss: the whole logits at once, in pieces, or
fused."""
from __future__ import annotations

from . import fused_kernels, views
from . import operators as op
from .attention_kernels import softcap
from .program import INCOMING, Op, Tape
from .sizes import Size, ceil_div, product, uniformly
from .tensor import Tensor


def cross_entropy(tape: Tape, logits: Tensor, *, mean: bool = True) -> Tensor:
    """log_softmax in the logits' dtype, then the targets' entries (fp32 under autocast). [S12]

    logits: (..., v) -> a scalar. Keeps the log-probabilities (and under autocast their fp32 copy).
    With fused kernels in place of all that, [N7].
    """
    if tape.kernels.loss in ("in place", "chunked in place"):
        return fused_kernels.cross_entropy(tape, logits, mean=mean)
    with tape.part("cross entropy", logits):
        log_probs, d_logits = logits.like("log_softmax"), logits.gradient()
        tape.append(Op("log_softmax", (logits,), (log_probs,), saves=(log_probs,),
                       backward=(+d_logits,), gradients={logits: d_logits}, equation="S12"))
        tape.hold(log_probs)
        if tape.precision.autocast:
            log_probs = op.in_float32(tape, log_probs)
        loss = Tensor("loss", (), log_probs.dtype)
        total_weight = Tensor("total weight", (), log_probs.dtype)
        d_log_probs = log_probs.gradient()
        return tape.append(Op("nll_loss", (log_probs,), (loss, total_weight),
                              saves=(log_probs, total_weight), backward=(+d_log_probs,),
                              gradients={log_probs: d_log_probs}, equation="S12"))


def chunked_cross_entropy(tape: Tape, weights: op.LinearWeights, x: Tensor, *, cap: bool,
                          chunks: int) -> Tensor:
    """Each piece of the tokens is projected and compared under a checkpoint: one piece's logits
    live at a time."""
    with tape.part("chunked cross entropy", x):
        h = x.shape[-1]
        rows = product(x.shape[:-1])
        flat = views.reshape(tape, "tokens", x, (rows, h))
        pieces = views.split(tape, "pieces", flat, piece_sizes(rows, chunks), dim=0)
        tape.hold(*pieces)
        total = piece_loss(tape, weights, pieces[0], cap=cap)
        for piece in pieces[1:]:
            total = add_losses(tape, total, piece_loss(tape, weights, piece, cap=cap))
        tape.hold(total)
        return op.elementwise(tape, "loss", total)


def piece_sizes(rows: Size, chunks: int) -> tuple[Size, ...]:
    """torch.chunk: pieces of ceil(rows / chunks), the last one shorter; perhaps fewer than asked.
    """
    size = ceil_div(rows, chunks)
    full = next(n for n in range(chunks, 0, -1) if uniformly(rows // size == n))
    rest = rows - full * size
    return (size,) * full + ((rest,) if uniformly(rest > 0) else ())


def piece_loss(tape: Tape, weights: op.LinearWeights, x: Tensor, *, cap: bool) -> Tensor:
    """(tokens, h) -> summed loss, a scalar."""
    with tape.part("piece", x, checkpoint=True):
        logits = op.linear(tape, weights, x)
        if cap:
            logits = softcap(tape, "logits", logits)
        tape.hold(logits)
        return cross_entropy(tape, logits, mean=False)


def add_losses(tape: Tape, total: Tensor, piece: Tensor) -> Tensor:
    """total + piece, scalars."""
    with tape.part("total", total):
        return tape.append(Op("total + piece", (total, piece), (total.like("total loss"),),
                              gradients={total: INCOMING, piece: INCOMING}, equation="S1"))


def scaled_loss(loss: Tensor) -> Op:
    """loss * scale, as torch.amp.GradScaler multiplies it: the scale is kept. [S1]"""
    scaled, d_loss = Tensor("scaled loss", (), "float32"), loss.gradient()
    return Op("loss * scale", (loss,), (scaled,), backward=(+d_loss,), gradients={loss: d_loss},
              equation="S1")
