"""Rank 0 of N on the emulated GPU: what DDP, ZeroRedundancyOptimizer and FSDP2 keep, by hand."""

from __future__ import annotations

from typing import Any

from conftest import Emulated

from gpuledger.config import load_run
from gpuledger.config.load import load_gpu
from gpuledger.torch_runs.child import Measurer, Options, environment_of

RANKS = 8
HIDDEN, FFN, VOCABULARY, LAYERS = 36, 100, 300, 2      # neither 36 x ... nor 100 rows divide by 8
BYTES = 4                                              # fp32 weights under autocast


def measured(measurer: Measurer, parallel: dict[str, Any]) -> dict[str, int]:
    """Bytes by owner at the end of the last backward pass."""
    run = load_run({
        "model": {
            "num_layers": LAYERS, "hidden_size": HIDDEN, "num_heads": 3, "num_kv_heads": 3,
            "head_dim": 12, "ffn_hidden_size": FFN, "vocab_size": VOCABULARY,
            "max_position_embeddings": 64, "norm": "rmsnorm", "activation": "swiglu",
            "positions": "rotary", "qkv_projection": "separate", "bias": False,
            "tie_embeddings": False, "dropout": 0.0, "attention_dropout": 0.0,
            "embedding_dropout": 0.0},
        "training": {
            "seq_len": 64, "micro_batch_size": 2, "global_batch_size": 2 * RANKS,
            "precision": "bf16-mixed", "optimizer": "adamw", "attention": "eager",
            "recompute": "none", "loss": "cross_entropy", "optimizer_implementation": "fused"},
        "parallel": {"dp": RANKS, **parallel},
        "cluster": {"gpu": "h100-80gb-sxm", "gpus": RANKS}})
    boundaries = measurer.measure(run, Options())["account"]["boundaries"]
    owned: dict[str, int] = next(
        b["owned_bytes"] for b in boundaries if b["instant"] == "backward")
    return owned


def test_what_each_framework_keeps(emulated: Emulated) -> None:
    shapes = [(VOCABULARY, HIDDEN), (HIDDEN, 1), (VOCABULARY, HIDDEN)]
    block = [(HIDDEN, 1)] * 2 + [(HIDDEN, HIDDEN)] * 4 + [(FFN, HIDDEN)] * 2 + [(HIDDEN, FFN)]
    shapes += block * LAYERS
    whole = BYTES * sum(rows * width for rows, width in shapes)
    shard = BYTES * sum(-(-rows // RANKS) * width for rows, width in shapes)
    with Measurer(environment_of(load_gpu("h100-80gb-sxm")), 120) as measurer:
        alone = measured(measurer, {})
        ddp = measured(measurer, {"framework": "ddp"})
        zero1 = measured(measurer, {"framework": "zero-redundancy-optimizer", "zero_stage": 1})
        fsdp = {stage: measured(measurer, {"framework": "fsdp2", "zero_stage": stage})
                for stage in (2, 3)}
    steps = BYTES * len(shapes)                     # a fused AdamW counts on the device
    assert alone["parameters"] == alone["gradients"] == whole
    assert alone["optimizer"] == 2 * whole + steps
    # DDP's buckets hold all gradients once more, and live from the first step on.
    assert ddp == alone | {"workspaces": alone["workspaces"] + whole}
    assert zero1 == ddp | {"optimizer": zero1["optimizer"]}
    assert zero1["optimizer"] < alone["optimizer"] // 4
    for owned in fsdp.values():
        assert owned["parameters"] == owned["gradients"] == shard
        assert 2 * (shard - steps * HIDDEN) < owned["optimizer"] <= 2 * shard + steps
