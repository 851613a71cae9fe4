"""Small runs of Megatron-LM for tests: by name, and drawn at random."""

from __future__ import annotations

import random
from typing import Any

from gpuledger.config import Run, load_run

MODEL: dict[str, Any] = {
    "name": "small", "num_layers": 4, "hidden_size": 128, "num_heads": 8, "num_kv_heads": 8,
    "head_dim": 16, "ffn_hidden_size": 512, "vocab_size": 1000, "max_position_embeddings": 64,
    "norm": "layernorm", "activation": "gelu", "positions": "learned", "qkv_projection": "fused",
    "bias": True, "tie_embeddings": True, "dropout": 0.1, "embedding_dropout": 0.1,
    "attention_dropout": 0.1}
TRAINING: dict[str, Any] = {
    "seq_len": 64, "micro_batch_size": 1, "precision": "bf16-master", "optimizer": "adamw",
    "attention": "flash", "recompute": "none", "loss": "cross_entropy"}


def megatron_run(num_microbatches: int = 1, model: dict[str, Any] | None = None,
                 training: dict[str, Any] | None = None, options: dict[str, Any] | None = None,
                 **axes: Any) -> Run:
    """A run of Megatron's on so many micro-batches; axes are keys of `parallel`, options Megatron's."""
    mesh = {"dp": 1, "tp": 1, "pp": 1, "cp": 1} | axes
    trained = TRAINING | (training or {})
    trained["global_batch_size"] = num_microbatches * trained["micro_batch_size"] * mesh["dp"]
    gpus = mesh["dp"] * mesh["tp"] * mesh["pp"] * mesh["cp"]
    return load_run({
        "name": "small", "model": MODEL | (model or {}), "training": trained,
        "parallel": mesh | {"framework": "megatron", "megatron": options or {}},
        "cluster": {"gpu": "h100-80gb-sxm", "gpus": gpus, "gpus_per_node": gpus}})


def biases(given: bool, norm: str = "layernorm") -> dict[str, bool]:
    """Of all linears or of none; a LayerNorm has one in any case."""
    linears = ("query", "key_value", "attention_out", "mlp_up", "mlp_down")
    return dict.fromkeys(linears, given) | {"norm": norm == "layernorm"}


def drawn_megatron_run(seed: int) -> Run:
    """Any layers, attention, recompute, optimizer, schedule and mesh that the account knows."""
    rng = random.Random(seed)
    tp, pp, dp = rng.choice([1, 2, 4]), rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 2, 4])
    vpp = rng.choice([1, 2, 3]) if pp > 1 else 1
    local = rng.random() < 0.3
    recompute = rng.choice(["none", "none", "selective", "full"])
    options: dict[str, Any] = {
        "transformer_impl": "local" if local else "transformer_engine",
        "params_dtype": rng.choice(["bfloat16", "float16"]),
        "overlap_p2p_communication": rng.random() < 0.7,
        "attention_mask_in_dataloader": rng.random() < 0.7,
        "cross_entropy_loss_fusion": rng.random() < 0.2,
        "keeps_batches": rng.random() < 0.2,
        "old_transformer_engine": rng.random() < 0.2,
        "overlap_grad_reduce": rng.random() < 0.3}
    zero_stage = rng.choice([0, 1])
    if zero_stage and rng.random() < 0.4:
        options |= {"use_precision_aware_optimizer": True,
                    "exp_avg_dtype": rng.choice(["float32", "bfloat16"]),
                    "exp_avg_sq_dtype": rng.choice(["float32", "float16"])}
    if recompute == "full":
        options |= {"recompute_method": rng.choice(["uniform", "block"]),
                    "recompute_num_layers": rng.choice([1, 2, 3])}
    elif recompute == "selective":
        options["recompute_modules"] = rng.choice([["core_attn"], ["mlp"], ["core_attn", "mlp"]])
    if pp > 1 and rng.random() < 0.2:
        options |= {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": rng.choice([0, 2]),
                    "keeps_deferred_gradient": rng.random() < 0.5}
    norm = rng.choice(["layernorm", "layernorm", "rmsnorm"])
    model = {"num_layers": pp * vpp * rng.choice([1, 2, 5]), "bias": biases(rng.random() < 0.6, norm),
             "tie_embeddings": rng.random() < 0.5, "dropout": rng.choice([0.0, 0.1]),
             "attention_dropout": rng.choice([0.0, 0.1]), "num_kv_heads": rng.choice([4, 8]),
             "positions": rng.choice(["learned", "rotary"])}
    if norm == "rmsnorm":
        model |= {"norm": norm, "activation": "swiglu", "gate_up_projection": "fused"}
    training = {"micro_batch_size": rng.choice([1, 2, 3]), "seq_len": rng.choice([32, 64]),
                "attention": "eager" if local else rng.choice(["flash", "cudnn", "eager"]),
                "recompute": recompute}
    groups = rng.choice([1, 2, 3])
    return megatron_run(groups * pp, model, training, options, tp=tp, pp=pp, dp=dp, vpp=vpp,
                        zero_stage=zero_stage, sequence_parallel=tp > 1 and rng.random() < 0.5)
