"""Published models as records, written out here so that a test does not depend on a preset."""
from __future__ import annotations

from typing import Any

from gpuledger.config.model import Model


def gpt2_like(**sizes: Any) -> Model:
    """GPT-2's architecture: LayerNorm, learned positions, GELU, biases, a tied head."""
    a, h = sizes["num_heads"], sizes["hidden_size"]
    fields: dict[str, Any] = {
        "num_kv_heads": a, "head_dim": h // a, "ffn_hidden_size": 4 * h, "vocab_size": 50257,
        "max_position_embeddings": 1024, "norm": "layernorm", "activation": "gelu_tanh",
        "positions": "learned", "qkv_projection": "fused", "bias": True, "tie_embeddings": True,
        "dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0,
    }
    return Model(**{**fields, **sizes})


def llama_like(**sizes: Any) -> Model:
    """LLaMA's architecture: RMSNorm, rotary positions, SwiGLU, no bias, an untied head."""
    a, h = sizes["num_heads"], sizes["hidden_size"]
    fields: dict[str, Any] = {
        "num_kv_heads": a, "head_dim": h // a, "max_position_embeddings": 8192,
        "norm": "rmsnorm", "activation": "swiglu", "positions": "rotary",
        "qkv_projection": "separate", "bias": False, "tie_embeddings": False,
        "dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0,
    }
    return Model(**{**fields, **sizes})


GPT2 = gpt2_like(num_layers=12, hidden_size=768, num_heads=12)
GPT2_MEDIUM = gpt2_like(num_layers=24, hidden_size=1024, num_heads=16)
GPT2_LARGE = gpt2_like(num_layers=36, hidden_size=1280, num_heads=20)
GPT2_XL = gpt2_like(num_layers=48, hidden_size=1600, num_heads=25)
GPT3_175B = gpt2_like(num_layers=96, hidden_size=12288, num_heads=96, vocab_size=51200,
                      max_position_embeddings=2048)
LLAMA2_7B = llama_like(num_layers=32, hidden_size=4096, num_heads=32, ffn_hidden_size=11008,
                       vocab_size=32000)
LLAMA3_8B = llama_like(num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8,
                       ffn_hidden_size=14336, vocab_size=128256)
LLAMA3_70B = llama_like(num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8,
                        ffn_hidden_size=28672, vocab_size=128256)
LLAMA31_405B = llama_like(num_layers=126, hidden_size=16384, num_heads=128, num_kv_heads=8,
                          ffn_hidden_size=53248, vocab_size=128256)
MISTRAL_7B = llama_like(num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8,
                        ffn_hidden_size=14336, vocab_size=32000, sliding_window=4096)
QWEN25_0_5B = llama_like(
    num_layers=24, hidden_size=896, num_heads=14, num_kv_heads=2, ffn_hidden_size=4864,
    vocab_size=151936, tie_embeddings=True,
    bias={"query": True, "key_value": True, "attention_out": False, "mlp_up": False,
          "mlp_down": False, "norm": False})
QWEN25_7B = llama_like(
    num_layers=28, hidden_size=3584, num_heads=28, num_kv_heads=4, ffn_hidden_size=18944,
    vocab_size=152064,
    bias={"query": True, "key_value": True, "attention_out": False, "mlp_up": False,
          "mlp_down": False, "norm": False})
QWEN3_0_6B = llama_like(num_layers=28, hidden_size=1024, num_heads=16, num_kv_heads=8,
                        head_dim=128, ffn_hidden_size=3072, vocab_size=151936,
                        tie_embeddings=True, qk_norm="head")
OLMO2_7B = llama_like(num_layers=32, hidden_size=4096, num_heads=32, ffn_hidden_size=11008,
                      vocab_size=100352, norm_position="post", qk_norm="full")
GEMMA2_2B = llama_like(num_layers=26, hidden_size=2304, num_heads=8, num_kv_heads=4, head_dim=256,
                       ffn_hidden_size=9216, vocab_size=256000, tie_embeddings=True,
                       activation="geglu", norm_position="sandwich", sliding_window=4096,
                       full_attention_interval=2)
GEMMA3_1B = llama_like(num_layers=26, hidden_size=1152, num_heads=4, num_kv_heads=1, head_dim=256,
                       ffn_hidden_size=6912, vocab_size=262144, tie_embeddings=True,
                       activation="geglu", norm_position="sandwich", qk_norm="head",
                       sliding_window=512, full_attention_interval=6)
PHI3_MINI = llama_like(num_layers=32, hidden_size=3072, num_heads=32, ffn_hidden_size=8192,
                       vocab_size=32064, qkv_projection="fused", gate_up_projection="fused")
TINYLLAMA = llama_like(num_layers=22, hidden_size=2048, num_heads=32, num_kv_heads=4,
                       ffn_hidden_size=5632, vocab_size=32000)
SMOLLM2_135M = llama_like(num_layers=30, hidden_size=576, num_heads=9, num_kv_heads=3,
                          ffn_hidden_size=1536, vocab_size=49152, tie_embeddings=True)
NEOX_20B = gpt2_like(num_layers=44, hidden_size=6144, num_heads=64, vocab_size=50432,
                     positions="rotary", tie_embeddings=False, parallel_residual=True,
                     max_position_embeddings=2048)
PYTHIA_70M = gpt2_like(num_layers=6, hidden_size=512, num_heads=8, vocab_size=50304,
                       positions="rotary", tie_embeddings=False, parallel_residual=True,
                       max_position_embeddings=2048)
OPT_125M = gpt2_like(num_layers=12, hidden_size=768, num_heads=12, vocab_size=50272,
                     max_position_embeddings=2048, learned_position_offset=2, activation="relu",
                     qkv_projection="separate")
BLOOM_560M = gpt2_like(num_layers=24, hidden_size=1024, num_heads=16, vocab_size=250880,
                       positions="alibi", embedding_norm=True)
FALCON_7B = gpt2_like(
    num_layers=32, hidden_size=4544, num_heads=71, num_kv_heads=1, vocab_size=65024,
    positions="rotary", parallel_residual=True, shared_norm=True, activation="gelu",
    bias={"query": False, "key_value": False, "attention_out": False, "mlp_up": False,
          "mlp_down": False, "norm": True})
MPT_7B = gpt2_like(num_layers=32, hidden_size=4096, num_heads=32, vocab_size=50432,
                   positions="alibi", activation="gelu", bias=False)
PHI2 = gpt2_like(
    num_layers=32, hidden_size=2560, num_heads=32, vocab_size=51200, positions="rotary",
    tie_embeddings=False, parallel_residual=True, shared_norm=True,
    bias={"query": True, "key_value": True, "attention_out": True, "mlp_up": True,
          "mlp_down": True, "norm": True, "head": True})
