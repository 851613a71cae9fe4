"""Transformer Engine's cross-entropy: the gradient is written over the logits in forward."""

from __future__ import annotations

from ..program import Op, Tape
from ..tensor import Tensor


def engine_cross_entropy(tape: Tape, logits: Tensor, tp: int) -> Tensor:
    """Keeps the logits, which hold their gradient, and the loss of each token. [M30]

    Until 2026-07-09; from then on the gradient is a tensor in fp32. Maximum, sum and target's logit
    of each token (12 bytes) are gathered over tp ranks. Ref: TransformerEngine 830ef60f
    transformer_engine/pytorch/triton/cross_entropy.py; Megatron-LM
    megatron/core/extensions/transformer_engine.py (te_parallel_cross_entropy).
    """
    tokens = logits.shape[:1]
    labels = Tensor("transposed labels", tokens, "int64", "scratch")
    loss = Tensor("loss of tokens", tokens, "float32")
    measures = Tensor("max, sum, target", (3 * tokens[0],), "float32", "scratch")
    gathered = Tensor("max, sum, target of all ranks", (3 * tokens[0] * tp,), "float32", "scratch")
    of_ranks = (gathered,) if tp > 1 else ()
    in_place = logits.view("gradient in the logits", logits.shape)
    return tape.append(Op(
        "cross entropy", (logits,), (loss, in_place), saves=(in_place,),
        forward=(+labels, +loss, +measures, *(+t for t in of_ranks), *(-t for t in of_ranks),
                 -measures, -labels),
        gradients={logits: in_place}, equation="M30"))
