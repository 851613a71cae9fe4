"""Gemma 1, 2 and 3 (the text model): GeGLU, wide heads, a scaled and tied embedding.

Key names and defaults: huggingface/transformers src/transformers/models/gemma*/configuration_*.py.
"""

from __future__ import annotations

from typing import Any

from .keys import Keys, gated, window
from .llama import Values, bias, llama_block

# Gemma 3 files leave out what equals the class's defaults.
GEMMA3_TEXT = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}


def gemma(keys: Keys) -> Values:
    """model_type gemma."""
    attention = keys.flag("attention_bias", default=False)
    return llama_block(keys) | {
        "head_dim": keys.whole("head_dim", default=256),
        "max_position_embeddings": keys.whole("max_position_embeddings", default=8192),
        "activation": gated(keys, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh"),
        "bias": bias(query=attention, key_value=attention, attention_out=attention),
        "tie_embeddings": keys.flag("tie_word_embeddings", default=True),
        "embedding_scale": True,
    }


def gemma2(keys: Keys) -> Values:
    """model_type gemma2: norms around each sublayer, soft caps, every second layer full."""
    return (
        gemma(keys)
        | {"norm_position": "sandwich"}
        | _soft_caps(keys, 50.0, 30.0)
        | window(keys, keys.whole("sliding_window", default=4096), _layer_types(keys, interval=2))
    )


def gemma3_text(keys: Keys) -> Values:
    """model_type gemma3_text: head norms instead of the soft cap, every sixth layer full."""
    present = {key: value for key, value in keys.values.items() if value is not None}
    keys.values = GEMMA3_TEXT | present
    interval = keys.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return (
        gemma(keys)
        | {"norm_position": "sandwich", "qk_norm": "head"}
        | _soft_caps(keys, None, None)
        | window(keys, keys.whole("sliding_window"), _layer_types(keys, interval))
    )


def _layer_types(keys: Keys, interval: int) -> list[str]:
    types: Any = keys.values.get("layer_types")
    if isinstance(types, list):
        return types
    return [
        "sliding_attention" if layer % interval else "full_attention"
        for layer in range(1, keys.whole("num_hidden_layers") + 1)
    ]


def _soft_caps(keys: Keys, attention: float | None, logits: float | None) -> Values:
    caps = {
        "attention_softcap": keys.values.get("attn_logit_softcapping", attention),
        "logits_softcap": keys.values.get("final_logit_softcapping", logits),
    }
    return {name: cap for name, cap in caps.items() if cap is not None}
