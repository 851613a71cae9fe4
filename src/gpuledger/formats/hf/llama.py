"""LLaMA and the models with its block: RMSNorm (or LayerNorm), rotary positions, a gated MLP.

Key names and defaults: huggingface/transformers src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

from typing import Any

from ...errors import NotYetError
from .keys import Keys, gated, rotary_dim, window

Values = dict[str, Any]


def bias(everywhere: bool = False, **exceptions: bool) -> dict[str, bool]:
    """Our bias mapping of a model with RMSNorm."""
    names = ("query", "key_value", "attention_out", "mlp_up", "mlp_down")
    return dict.fromkeys(names, everywhere) | {"norm": False} | exceptions


def llama_block(keys: Keys) -> Values:
    """What all families of this page share, with LLaMA's defaults."""
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    return {
        "num_layers": keys.whole("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": keys.whole("num_key_value_heads", default=heads),
        "head_dim": keys.whole("head_dim", default=keys.split(hidden, heads)),
        "ffn_hidden_size": keys.whole("intermediate_size"),
        "vocab_size": keys.whole("vocab_size"),
        "max_position_embeddings": keys.whole("max_position_embeddings", default=2048),
        "norm": "rmsnorm",
        "positions": "rotary",
        "qkv_projection": "separate",
        "bias": bias(),
        "activation": gated(keys, "hidden_act", default="silu"),
        "tie_embeddings": keys.flag("tie_word_embeddings", default=False),
        "dropout": 0.0,
        "attention_dropout": keys.number("attention_dropout", default=0.0),
        "embedding_dropout": 0.0,
    }


def llama(keys: Keys) -> Values:
    """model_type llama."""
    attention, mlp = (
        keys.flag("attention_bias", default=False),
        keys.flag("mlp_bias", default=False),
    )
    return llama_block(keys) | {
        "bias": bias(
            query=attention, key_value=attention, attention_out=attention, mlp_up=mlp, mlp_down=mlp
        )
    }


def mistral(keys: Keys) -> Values:
    """model_type mistral: all layers slide over a window, if there is one (the class says 4096)."""
    heads = keys.whole("num_attention_heads")
    unsaid = heads if "num_key_value_heads" in keys.values else 8
    kv_heads = {"num_kv_heads": keys.whole("num_key_value_heads", default=unsaid)}
    return llama_block(keys) | kv_heads | _window_everywhere(keys, default=4096)


def qwen2(keys: Keys) -> Values:
    """model_type qwen2: biases on query, key and value, always."""
    return llama_block(keys) | {"bias": bias(query=True, key_value=True)} | _qwen_window(keys)


def qwen3(keys: Keys) -> Values:
    """model_type qwen3: a norm on each head's query and key."""
    attention = keys.flag("attention_bias", default=False)
    return (
        llama_block(keys)
        | {
            "head_dim": keys.whole("head_dim", default=128),
            "qk_norm": "head",
            "bias": bias(query=attention, key_value=attention, attention_out=attention),
        }
        | _qwen_window(keys)
    )


def _qwen_window(keys: Keys) -> Values:
    """Layers from max_window_layers on slide, and only with use_sliding_window."""
    if not keys.flag("use_sliding_window", default=False):
        return {}
    layers, first = keys.whole("num_hidden_layers"), keys.values.get("max_window_layers", 28)
    types = keys.values.get("layer_types")
    if not isinstance(types, list):
        types = [
            "sliding_attention" if layer >= first else "full_attention" for layer in range(layers)
        ]
    if types[0] == "full_attention" and "sliding_attention" in types:
        raise NotYetError(
            f"{keys.where}: layers from max_window_layers = {first} on have a sliding window, "
            "which is not accounted for yet",
            "set use_sliding_window: false for full attention everywhere",
        )
    return window(keys, keys.whole("sliding_window", default=4096), types)


def phi3(keys: Keys) -> Values:
    """model_type phi3: fused projections for q, k, v and for gate and up."""
    values = llama_block(keys) | {
        "qkv_projection": "fused",
        "gate_up_projection": "fused",
        "dropout": keys.number("resid_pdrop", default=0.0),
        "embedding_dropout": keys.number("embd_pdrop", default=0.0),
    }
    return values | rotary_dim(keys, values["head_dim"], default=1.0) | _window_everywhere(keys)


def _window_everywhere(keys: Keys, default: int | None = None) -> Values:
    """Our keys where every layer has the window of the key sliding_window; null: none has."""
    if keys.values.get("sliding_window", default) is None:
        return {}
    return {"sliding_window": keys.whole("sliding_window", default=default)}


def olmo2(keys: Keys) -> Values:
    """model_type olmo2: norms after the sublayers, and over the whole query and key projections."""
    attention = keys.flag("attention_bias", default=False)
    return llama_block(keys) | {
        "norm_position": "post",
        "qk_norm": "full",
        "bias": bias(query=attention, key_value=attention, attention_out=attention),
    }


def stablelm(keys: Keys) -> Values:
    """model_type stablelm (once stablelm_epoch): LayerNorm and partly rotated heads."""
    keys.only("qk_layernorm", False, default=False)
    qkv = keys.flag("use_qkv_bias", default=False)
    values = llama_block(keys) | {
        "norm": "layernorm",
        "bias": bias(query=qkv, key_value=qkv, norm=True),
        "dropout": keys.number("hidden_dropout", default=0.0),
    }
    if keys.flag("use_parallel_residual", default=False):
        values |= {"parallel_residual": True, "shared_norm": True}
    return values | rotary_dim(keys, values["head_dim"], "rope_pct", default=0.25)
