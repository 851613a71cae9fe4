"""Small random `Model` and `Training` records: every option that runs on the emulated GPU."""
from __future__ import annotations

import random
from typing import Any

from pydantic import ValidationError

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.errors import GpuledgerError
from gpuledger.torch_runs.reference_model.support import refuse_unsupported

ATTENTION = ("eager", "math", "efficient", "flash")     # cuDNN does not run on the emulated GPU
PRECISIONS = ("fp32", "tf32", "fp16-mixed", "bf16-mixed", "bf16", "bf16-master")
OPTIMIZERS = ("sgd", "adam", "adamw", "adafactor", "lion", "muon", "adamw-8bit")


def draw_run(seed: int) -> tuple[Model, Training]:
    """The first valid combination that this seed leads to."""
    choices = random.Random(seed)
    while True:
        try:
            model = Model.model_validate(draw_model(choices))
            training = Training.model_validate(draw_training(choices))
            refuse_unsupported(model, training)
        except (ValidationError, GpuledgerError):
            continue
        softcap_needs_eager = model.attention_softcap is not None and training.attention != "eager"
        if training.seq_len <= model.max_position_embeddings and not softcap_needs_eager:
            return model, training


def draw_model(choices: random.Random) -> dict[str, Any]:
    """GPT-2 or LLaMA, with each of the rarer options in a minority of cases."""
    gpt2 = choices.random() < 0.5
    heads, head_dim = choices.choice([2, 4, 6]), 8 * choices.randint(1, 8)
    dropout = choices.choice([0.0, 0.1]) if gpt2 else 0.0
    kv_heads = heads if gpt2 else choices.choice([1, 2, heads])
    fields = dict(
        num_layers=choices.randint(1, 3), hidden_size=heads * head_dim, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=head_dim, ffn_hidden_size=8 * choices.randint(2, 60),
        vocab_size=4 * choices.randint(50, 500), max_position_embeddings=160,
        norm="layernorm" if gpt2 else "rmsnorm", activation="gelu_tanh" if gpt2 else "swiglu",
        positions="learned" if gpt2 else "rotary", qkv_projection="fused" if gpt2 else "separate",
        bias=gpt2, tie_embeddings=choices.random() < 0.5, dropout=dropout,
        attention_dropout=dropout, embedding_dropout=dropout)
    for name, value in rarer_options(choices, head_dim).items():
        if choices.random() < 0.12:
            fields[name] = value
    return fields


def rarer_options(choices: random.Random, head_dim: int) -> dict[str, Any]:
    """One value for each option that is off in plain GPT-2 and LLaMA."""
    return dict(
        hidden_size=8 * choices.randint(3, 20),
        activation=choices.choice(["gelu", "relu", "squared_relu", "silu", "geglu"]),
        positions=choices.choice(["alibi", "none", "rotary"]), rotary_dim=head_dim // 2,
        qk_norm=choices.choice(["head", "full"]),
        norm_position=choices.choice(["post", "sandwich"]),
        parallel_residual=True, shared_norm=True, embedding_norm=True, embedding_scale=True,
        qkv_projection=choices.choice(["fused", "separate"]), gate_up_projection="fused",
        bias=False,
        sliding_window=choices.randint(2, 100), attention_softcap=50.0, logits_softcap=30.0)


def draw_training(choices: random.Random) -> dict[str, Any]:
    """Every precision, optimizer, attention kernel, recompute mode and loss."""
    batch = choices.randint(1, 4)
    optimizer = choices.choice(OPTIMIZERS)
    whole, pieces = ["cross_entropy", "cross_entropy", "fp32_logits"], ["chunked", "fused_linear"]
    loss = choices.choice([*whole, *pieces])
    fields = dict(
        seq_len=choices.randint(3, 160), micro_batch_size=batch,
        global_batch_size=batch * choices.choice([1, 1, 2]), precision=choices.choice(PRECISIONS),
        optimizer=optimizer, attention=choices.choice(ATTENTION),
        recompute=choices.choice(["none", "none", "selective", "full", {"every": 2}]), loss=loss,
        rmsnorm_implementation=choices.choice(["fused", "composed"]),
        gradient_clipping=choices.random() < 0.3, set_to_none=choices.random() < 0.8,
        keep_logits=loss in ("cross_entropy", "fp32_logits") and choices.random() < 0.2)
    if optimizer in ("sgd", "adam", "adamw"):
        fields["optimizer_implementation"] = choices.choice(["foreach", "fused", "for-loop"])
    if optimizer in ("adam", "adamw"):
        fields["amsgrad"] = choices.random() < 0.3
    if optimizer == "sgd":
        fields["momentum"] = choices.choice([0.0, 0.9])
    return fields
