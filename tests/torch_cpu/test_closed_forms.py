"""Closed forms against PyTorch: parameters, and FLOPs as torch.utils.flop_counter counts them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from small_records import training
from torch.utils.flop_counter import FlopCounterMode

from gpuledger.compute.conventions import sequence_flops
from gpuledger.compute.parameters import parameter_counts
from gpuledger.config.model import Model
from gpuledger.torch_runs.reference_model.model import LanguageModel

BIASES = ("query", "key_value", "attention_out", "mlp_up", "mlp_down", "norm", "head")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "squared_relu", "silu", "swiglu", "geglu")


def random_model(seed: int) -> Model:
    """A small dense decoder with every field of `Model` that has parameters drawn at random."""
    draw = random.Random(seed)
    kv_heads = draw.choice([1, 2, 4])
    norm = draw.choice(["layernorm", "rmsnorm"])
    bias = {name: draw.random() < 0.5 for name in BIASES}
    bias["norm"] = bias["norm"] and norm == "layernorm"
    fused = bias["query"] == bias["key_value"] and draw.random() < 0.5
    positions = draw.choice(["learned", "rotary", "alibi", "none"])
    activation = draw.choice(ACTIVATIONS)
    gated = activation in ("swiglu", "geglu")
    parallel = draw.random() < 0.3
    fields: dict[str, Any] = {
        "num_layers": draw.randint(1, 3),
        "hidden_size": 8 * draw.randint(1, 6),
        "num_heads": kv_heads * draw.choice([1, 2, 3]),
        "num_kv_heads": kv_heads,
        "head_dim": 2 * draw.randint(1, 9),
        "ffn_hidden_size": draw.randint(1, 99),
        "vocab_size": draw.randint(2, 99),
        "max_position_embeddings": draw.randint(20, 40),
        "norm": norm,
        "norm_position": "pre" if parallel else draw.choice(["pre", "post", "sandwich"]),
        "parallel_residual": parallel,
        "shared_norm": parallel and draw.random() < 0.5,
        "embedding_norm": draw.random() < 0.3,
        "qk_norm": draw.choice(["none", "head", "full"]),
        "activation": activation,
        "positions": positions,
        "learned_position_offset": draw.choice([0, 2]) if positions == "learned" else 0,
        "qkv_projection": "fused" if fused else "separate",
        "gate_up_projection": draw.choice(["fused", "separate"]) if gated else "separate",
        "bias": bias,
        "tie_embeddings": draw.random() < 0.5,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
    }
    return Model.model_validate(fields)


@pytest.mark.parametrize("seed", range(100))
def test_parameters_and_traced_flops(seed: int) -> None:
    """Counted: every matrix and the full square of attention, three passes, as `nanotron` does."""
    model, step = random_model(seed), training(attention="eager")
    with torch.device("meta"):
        network = LanguageModel(model, step)
        tokens = torch.zeros(step.micro_batch_size, step.seq_len, dtype=torch.long)
    assert sum(p.numel() for p in network.parameters()) == parameter_counts(model).total
    with FlopCounterMode(display=False) as counter:
        loss = network(tokens, tokens)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
    closed_form = sequence_flops(model, step.seq_len, "nanotron").total
    assert counter.get_total_flops() == step.micro_batch_size * closed_form
