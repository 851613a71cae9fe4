"""Transformer Engine's fused cross-entropy overwrites the logits."""

from __future__ import annotations

from typing import Any

from gpuledger.estimate import estimate
from megatron_runs import megatron_run

VOCABULARY, TOKENS, HIDDEN = 131_072, 64 * 64, 128
OTHER_INSTANT = 2 * VOCABULARY * HIDDEN + 300 * TOKENS      # the head's weight gradient, small tensors


def peak_bytes(options: dict[str, Any]) -> int:
    """One layer and a wide vocabulary, so that the peak is the loss."""
    run = megatron_run(model={"num_layers": 1, "vocab_size": VOCABULARY}, training={"micro_batch_size": 64},
                       options=options)
    return estimate(run).memory.peak_requested_bytes


def test_two_bytes_a_logit() -> None:
    """Against 6 of the plain loss and 10 of the compiled one, but for the instant."""
    logits = TOKENS * VOCABULARY
    engine = peak_bytes({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"})
    assert abs(peak_bytes({}) - engine - 4 * logits) < OTHER_INSTANT
    assert abs(peak_bytes({"cross_entropy_loss_fusion": True}) - engine - 8 * logits) < OTHER_INSTANT


def test_it_belongs_to_the_fused_loss() -> None:
    assert peak_bytes({"cross_entropy_fusion_impl": "te"}) == peak_bytes({})
