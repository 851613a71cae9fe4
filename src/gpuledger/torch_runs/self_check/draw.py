"""Random small configurations: every family, recipe and option of the records that PyTorch has
kernels for."""
from __future__ import annotations

import random
from typing import Any

from pydantic_core import ValidationError

from gpuledger.config.cluster import Cluster, DensePeaks, Gpu
from gpuledger.config.model import Bias, Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.run import Run
from gpuledger.config.training import EveryK, Training

PRECISIONS = ("fp32", "tf32", "bf16", "bf16", "bf16-mixed", "bf16-mixed", "fp16-mixed",
              "bf16-master")
OPTIMIZERS = ("adamw", "adamw", "adam", "sgd", "lion", "adafactor", "muon", "adamw-8bit")
ALL_IMPLEMENTATIONS = ["foreach", "fused", "for-loop"]
IMPLEMENTATIONS = {"adafactor": ["foreach", "for-loop"], "lion": ["for-loop"],
                   "muon": ["for-loop"], "adamw-8bit": ["for-loop"]}


def draw_run(rng: random.Random, kernels: str = "torch") -> Run:
    """One configuration. kernels: "torch" or "fused". Sizes are small and odd, so that tensors
    differ in bytes."""
    seq_len, batch = rng.randint(3, 300), rng.randint(1, 5)
    if rng.random() < 0.12:
        seq_len = rng.randint(1024, 5000) // batch + 1
    precision = rng.choice(PRECISIONS)
    model = draw_model(rng, seq_len)
    training = draw_training(rng, model, precision, seq_len, batch)
    if kernels == "fused":
        training = with_fused_kernels(rng, training)
    gpu = Gpu(name="drawn", full_name="drawn", vendor="nvidia", memory_bytes=80 * 2**30,
              dense_peak_flops_per_second=DensePeaks(), sources={})
    return Run(name="drawn", model=model, training=training, parallel=Parallelism(),
               cluster=Cluster(gpu=gpu, gpus=1, gpus_per_node=1))


def run_of(keys: dict[str, Any]) -> Run | None:
    """The run of drawn keys; None where they contradict each other."""
    if keys["training"]["loss"] not in ("chunked", "fused_linear"):
        keys["training"].pop("loss_chunks")
    try:
        return Run.model_validate(keys)
    except ValidationError:
        return None


def with_fused_kernels(rng: random.Random, training: Training) -> Training:
    """The same by gpuledger's kernels; half of the runs with their AdamW."""
    changes: dict[str, Any] = {"kernels": "fused", "rmsnorm_implementation": "fused"}
    if training.recompute == "per_op":              # of PyTorch's operators alone
        changes["recompute"] = "full"
    if rng.random() < 0.5:
        changes |= {"optimizer": "adamw", "optimizer_implementation": "fused", "amsgrad": False,
                    "momentum": 0.0}
    return Training.model_validate(training.model_dump() | changes)


def draw_model(rng: random.Random, seq_len: int) -> Model:
    """A decoder; half of them LLaMA-like, half GPT-like, each with options of its own."""
    heads = rng.choice([1, 2, 2, 4, 6])
    kv = rng.choice([k for k in (1, 2, heads) if heads % k == 0])
    head_dim = rng.choice([8 * rng.randint(1, 16), 8 * rng.randint(1, 16),
                           8 * rng.randint(17, 32), 2 * rng.randint(1, 64)])
    llama = rng.random() < 0.5
    width = head_dim * heads if rng.random() < 0.7 else 8 * rng.randint(4, 40)
    sizes = {"num_layers": rng.randint(1, 4), "hidden_size": width, "num_heads": heads,
             "num_kv_heads": kv if llama or rng.random() < 0.2 else heads, "head_dim": head_dim,
             "ffn_hidden_size": rng.randint(16, 1600), "vocab_size": rng.randint(200, 8000),
             "max_position_embeddings": seq_len + rng.randint(0, 9)}
    family = draw_llama(rng) if llama else draw_gpt(rng, head_dim)
    options = draw_options(rng, seq_len)
    if family["positions"] == "alibi":
        options["sliding_window"] = options["full_attention_interval"] = None
    return Model.model_validate(sizes | family | options)


def draw_llama(rng: random.Random) -> dict[str, Any]:
    """RMSNorm, rotary positions, a gated MLP."""
    biased = rng.random() < 0.2
    bias = Bias(query=biased, key_value=biased, attention_out=rng.random() < 0.1, mlp_up=False,
                mlp_down=False, norm=False)
    return {"norm": "rmsnorm", "activation": rng.choice(["swiglu", "swiglu", "geglu"]),
            "positions": "rotary", "bias": bias, "dropout": 0.0, "attention_dropout": 0.0,
            "embedding_dropout": 0.0, "qk_norm": rng.choice(["none", "none", "head", "full"]),
            "norm_position": rng.choice(["pre", "pre", "pre", "post", "sandwich"]),
            "embedding_scale": rng.random() < 0.2,
            "gate_up_projection": rng.choice(["separate", "separate", "fused"]),
            "qkv_projection": rng.choice(["separate", "separate", "fused"])}


def draw_gpt(rng: random.Random, head_dim: int) -> dict[str, Any]:
    """LayerNorm, dropout, biases, all kinds of positions."""
    dropout, attention_dropout = rng.choice([0.0, 0.0, 0.1]), rng.choice([0.0, 0.0, 0.1])
    positions = rng.choice(["learned", "learned", "rotary", "alibi", "none"])
    parallel, biased = rng.random() < 0.25, rng.random() < 0.7
    bias = Bias.model_validate(biased).model_copy(update={"head": rng.random() < 0.2})
    return {"norm": "layernorm", "positions": positions, "dropout": dropout,
            "activation": rng.choice(["gelu", "gelu_tanh", "relu", "squared_relu", "silu"]),
            "attention_dropout": attention_dropout, "embedding_dropout": dropout,
            "parallel_residual": parallel, "shared_norm": parallel and rng.random() < 0.5,
            "embedding_norm": rng.random() < 0.15,
            "rotary_dim": 2 * rng.randint(1, head_dim // 2) if positions == "rotary" else None,
            "learned_position_offset": rng.choice([0, 2]) if positions == "learned" else 0,
            "qkv_projection": rng.choice(["fused", "fused", "separate"]), "bias": bias}


def draw_options(rng: random.Random, seq_len: int) -> dict[str, Any]:
    """Windows, softcaps and tying, of either family."""
    window = rng.randint(1, seq_len) if rng.random() < 0.15 else None
    return {"tie_embeddings": rng.random() < 0.5, "sliding_window": window,
            "full_attention_interval": rng.choice([None, 2, 3]) if window else None,
            "attention_softcap": 50.0 if rng.random() < 0.07 else None,
            "logits_softcap": 30.0 if rng.random() < 0.1 else None}


def draw_training(rng: random.Random, model: Model, precision: str, seq_len: int,
                  batch: int) -> Training:
    """Options that the model and precision have kernels for."""
    attention = rng.choice(kernels_for(model, precision))
    recompute = draw_recompute(rng, attention)
    loss, optimizer = rng.choice(losses_for(model)), rng.choice(OPTIMIZERS)
    chunks = {"loss_chunks": min(rng.choice([2, 3, 8]), batch * seq_len)}
    return Training.model_validate({
        "seq_len": seq_len, "micro_batch_size": batch,
        "global_batch_size": batch * rng.choice([1, 1, 2, 3]),
        "precision": precision, "optimizer": optimizer,
        "optimizer_implementation": rng.choice(IMPLEMENTATIONS.get(optimizer, ALL_IMPLEMENTATIONS)),
        "amsgrad": optimizer in ("adam", "adamw") and rng.random() < 0.2,
        "momentum": 0.9 if optimizer == "sgd" and rng.random() < 0.6 else 0.0,
        "attention": attention, "recompute": recompute,
        "offload": (rng.choice(["none", "none", "block_inputs"])
                    if recompute not in ("none", "selective") else "none"),
        "loss": loss, **(chunks if loss in ("chunked", "fused_linear") else {}),
        "rmsnorm_implementation": ("composed" if model.norm == "rmsnorm" and rng.random() < 0.4
                                   else "fused"),
        "gradient_clipping": rng.random() < 0.3, "set_to_none": rng.random() < 0.8,
        "keep_logits": loss in ("cross_entropy", "fp32_logits") and rng.random() < 0.15})


def draw_recompute(rng: random.Random, attention: str) -> Any:
    """Checkpoints; per operator but for the math kernel, which PyTorch takes apart under it."""
    per_op = ("per_op",) if attention != "math" else ()
    return rng.choice(["none", "none", "full", "selective", EveryK(every=2), *per_op])


def losses_for(model: Model) -> list[str]:
    """The fused loss knows no softcap."""
    losses = ["cross_entropy", "cross_entropy", "fp32_logits", "chunked", "fused_linear"]
    return losses if model.logits_softcap is None else losses[:-1]


def kernels_for(model: Model, precision: str) -> list[str]:
    """Attention kernels of these head sizes, biases and dtypes; cuDNN's cannot run on the emulated
    GPU."""
    if model.attention_softcap is not None:
        return ["eager"]
    sixteen_bit = precision not in ("fp32", "tf32")
    kernels = ["eager", "math"]
    if model.head_dim % (8 if sixteen_bit else 4) == 0:
        kernels += ["efficient", "efficient"]
    windowed = model.sliding_window is not None and model.head_dim % 8
    if sixteen_bit and model.positions != "alibi" and model.head_dim <= 192 and not windowed:
        kernels += ["flash", "flash", "flash"]
    return kernels
