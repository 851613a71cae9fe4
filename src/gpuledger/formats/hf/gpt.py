"""GPT-2 and the models with its block: LayerNorm, two MLP matrices, mostly biases.

Key names and defaults: huggingface/transformers src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

from typing import Any

from ...errors import NotYetError
from .keys import Keys, rotary_dim, ungated

Values = dict[str, Any]
PROJECTIONS = ("query", "key_value", "attention_out", "mlp_up", "mlp_down")


def bias(projections: bool, *, norm: bool = True, head: bool = False) -> dict[str, bool]:
    """Our bias mapping of a model with LayerNorm."""
    return dict.fromkeys(PROJECTIONS, projections) | {"norm": norm, "head": head}


def gpt2(keys: Keys) -> Values:
    """model_type gpt2."""
    keys.only("add_cross_attention", False, default=False)
    hidden, heads = keys.whole("n_embd"), keys.whole("n_head")
    return {
        "num_layers": keys.whole("n_layer"),
        "hidden_size": hidden,
        **_heads(keys, heads, heads, hidden),
        "ffn_hidden_size": keys.whole("n_inner", default=4 * hidden),
        "vocab_size": keys.whole("vocab_size"),
        "max_position_embeddings": keys.whole("n_positions", "n_ctx", default=1024),
        "norm": "layernorm",
        "positions": "learned",
        "qkv_projection": "fused",
        "bias": bias(True),
        "activation": ungated(keys, "activation_function", default="gelu_new"),
        "tie_embeddings": keys.flag("tie_word_embeddings", default=True),
        "dropout": keys.number("resid_pdrop", default=0.1),
        "attention_dropout": keys.number("attn_pdrop", default=0.1),
        "embedding_dropout": keys.number("embd_pdrop", default=0.1),
    }


def gpt_bigcode(keys: Keys) -> Values:
    """model_type gpt_bigcode (StarCoder): GPT-2 with one key/value head."""
    heads = keys.whole("n_head")
    return gpt2(keys) | {
        "num_kv_heads": 1 if keys.flag("multi_query", default=True) else heads,
        "activation": ungated(keys, "activation_function", default="gelu_pytorch_tanh"),
    }


def gpt_neox(keys: Keys) -> Values:
    """model_type gpt_neox (GPT-NeoX-20B, Pythia): parallel residual, two norms."""
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    attention = keys.flag("attention_bias", default=True)
    dropout = _dropout(keys, "hidden_dropout", 0.0)
    common = _common(keys, hidden, heads, tied=False)
    return {
        **common,
        "positions": "rotary",
        **rotary_dim(keys, common["head_dim"], "rotary_pct", default=0.25),
        "parallel_residual": keys.flag("use_parallel_residual", default=True),
        "ffn_hidden_size": keys.whole("intermediate_size"),
        "qkv_projection": "fused",
        "bias": bias(True)
        | {"query": attention, "key_value": attention, "attention_out": attention},
        "activation": ungated(keys, "hidden_act", default="gelu"),
        **dropout,
        "embedding_dropout": dropout["dropout"],
    }


def opt(keys: Keys) -> Values:
    """model_type opt: positions from row 2 of the table, separate projections."""
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    projected = keys.whole("word_embed_proj_dim", default=hidden)
    if projected != hidden:
        raise NotYetError(
            f"{keys.where}: word_embed_proj_dim = {projected} differs from hidden_size = {hidden}: "
            "the projections in between are not accounted for yet",
            "the other OPT sizes are read",
        )
    keys.only("do_layer_norm_before", True, default=True)
    keys.only("_remove_final_layer_norm", False, default=False)
    keys.only("layer_norm_elementwise_affine", True, default=True)
    return {
        **_common(keys, hidden, heads, tied=True),
        "positions": "learned",
        "learned_position_offset": 2,
        "ffn_hidden_size": keys.whole("ffn_dim"),
        "qkv_projection": "separate",
        "bias": bias(keys.flag("enable_bias", default=True)),
        "activation": ungated(keys, "activation_function", default="relu"),
        **_dropout(keys, "dropout", 0.1),
        "embedding_dropout": 0.0,
    }


def phi(keys: Keys) -> Values:
    """model_type phi (Phi-1, 1.5, 2): one norm feeds attention and MLP, the head has a bias."""
    keys.only("qk_layernorm", False, default=False)
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    common = _common(keys, hidden, heads, tied=False)
    return {
        **common,
        "num_kv_heads": keys.whole("num_key_value_heads", default=heads),
        "positions": "rotary",
        **rotary_dim(keys, common["head_dim"], default=0.5),
        "parallel_residual": True,
        "shared_norm": True,
        "ffn_hidden_size": keys.whole("intermediate_size"),
        "qkv_projection": "separate",
        "bias": bias(True, head=True),
        "activation": ungated(keys, "hidden_act", default="gelu_new"),
        **_dropout(keys, "resid_pdrop", 0.0),
        "embedding_dropout": keys.number("embd_pdrop", default=0.0),
    }


def bloom(keys: Keys) -> Values:
    """model_type bloom: ALiBi, and a norm after the embedding. The FFN's width has no key."""
    keys.only("apply_residual_connection_post_layernorm", False, default=False)
    hidden, heads = (
        keys.whole("hidden_size", "n_embed"),
        keys.whole("n_head", "num_attention_heads"),
    )
    return {
        **_common(keys, hidden, heads, tied=True),
        "num_layers": keys.whole("n_layer", "num_hidden_layers"),
        "max_position_embeddings": keys.whole("seq_length", default=2048),
        "positions": "alibi",
        "embedding_norm": True,
        "ffn_hidden_size": 4 * hidden,
        "qkv_projection": "fused",
        "bias": bias(True),
        "activation": "gelu_tanh",
        **_dropout(keys, "hidden_dropout", 0.0),
        "embedding_dropout": 0.0,
    }


def falcon(keys: Keys) -> Values:
    """model_type falcon, and the names that its first files have (RefinedWeb, RefinedWebModel)."""
    hidden = keys.whole("hidden_size", "n_embed")
    heads = keys.whole("num_attention_heads", "n_head")
    grouped = keys.flag(
        "new_decoder_architecture", default=keys.values.get("model_type") == "RefinedWeb"
    )
    multi_query = keys.flag("multi_query", default=True)
    kv_heads = (
        keys.whole("num_kv_heads", "n_head_kv", default=heads)
        if grouped
        else (1 if multi_query else heads)
    )
    parallel = grouped or keys.flag("parallel_attn", default=True)
    norms = keys.whole("num_ln_in_parallel_attn", default=2 if grouped else 1)
    return {
        **_common(keys, hidden, heads, tied=True),
        "num_layers": keys.whole("num_hidden_layers", "n_layer"),
        "num_kv_heads": kv_heads,
        "positions": "alibi" if keys.flag("alibi", default=False) else "rotary",
        "parallel_residual": parallel,
        "shared_norm": parallel and norms == 1,
        "ffn_hidden_size": keys.whole("ffn_hidden_size", default=4 * hidden),
        "qkv_projection": "fused",
        "bias": bias(keys.flag("bias", default=False)),
        "activation": ungated(keys, "activation", default="gelu"),
        **_dropout(keys, "hidden_dropout", 0.0),
        "embedding_dropout": 0.0,
    }


def mpt(keys: Keys) -> Values:
    """model_type mpt: its attention's keys are nested in attn_config."""
    attention = keys.inner("attn_config")
    attention.only("qk_ln", False, default=False)
    attention.only("clip_qkv", None, default=None)
    hidden, heads = keys.whole("d_model"), keys.whole("n_heads")
    kinds = {
        "multiquery_attention": 1,
        "grouped_query_attention": attention.whole("kv_n_heads", default=heads),
    }
    alibi, no_bias = attention.flag("alibi", default=True), keys.flag("no_bias", default=True)
    learned = keys.flag("learned_pos_emb", default=True)
    return {
        "num_layers": keys.whole("n_layers"),
        "hidden_size": hidden,
        **_heads(keys, heads, kinds.get(attention.word("attn_type", default=""), heads), hidden),
        "ffn_hidden_size": int(keys.number("expansion_ratio", default=4) * hidden),
        "vocab_size": keys.whole("vocab_size"),
        "max_position_embeddings": keys.whole("max_seq_len", default=2048),
        "norm": "layernorm",
        "positions": "alibi" if alibi else "learned" if learned else "none",
        "qkv_projection": "fused",
        "bias": bias(not no_bias, norm=not no_bias),
        "activation": "gelu",
        "tie_embeddings": keys.flag("tie_word_embeddings", default=True),
        "dropout": keys.number("resid_pdrop", default=0.0),
        "attention_dropout": attention.number("attn_pdrop", default=0.0),
        "embedding_dropout": keys.number("emb_pdrop", default=0.0),
    }


def _common(keys: Keys, hidden: int, heads: int, *, tied: bool) -> Values:
    return {
        "num_layers": keys.whole("num_hidden_layers", "n_layer"),
        "hidden_size": hidden,
        **_heads(keys, heads, heads, hidden),
        "vocab_size": keys.whole("vocab_size"),
        "max_position_embeddings": keys.whole("max_position_embeddings", default=2048),
        "norm": "layernorm",
        "tie_embeddings": keys.flag("tie_word_embeddings", default=tied),
    }


def _heads(keys: Keys, heads: int, kv_heads: int, hidden: int) -> Values:
    return {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": keys.split(hidden, heads)}


def _dropout(keys: Keys, residual: str, default: float) -> dict[str, float]:
    return {
        "dropout": keys.number(residual, default=default),
        "attention_dropout": keys.number("attention_dropout", default=0.0),
    }
