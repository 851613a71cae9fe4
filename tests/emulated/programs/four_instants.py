"""First step of a two-layer GPT-2: requested bytes at each boundary, cuBLAS workspaces apart."""
from __future__ import annotations

import json

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.torch_runs.counters import CounterMeter
from gpuledger.torch_runs.step import Trainer

CUBLAS_WORKSPACE = 33_554_432

model = Model.model_validate(dict(
    num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=4, head_dim=16, ffn_hidden_size=256,
    vocab_size=256, max_position_embeddings=32, norm="layernorm", activation="gelu_tanh",
    positions="learned", qkv_projection="fused", bias=True, tie_embeddings=True, dropout=0.0,
    attention_dropout=0.0, embedding_dropout=0.0))
training = Training.model_validate(dict(
    seq_len=32, micro_batch_size=2, global_batch_size=2, precision="fp32", optimizer="adamw",
    optimizer_implementation="foreach", attention="efficient", recompute="none",
    loss="cross_entropy"))
trainer = Trainer(model, training, 1, "cuda")
meter = CounterMeter()
trainer.step(meter)
threads = {"forward": 1}                    # the backward thread takes the second workspace
print(json.dumps({
    b.instant: b.current["requested_bytes"] - CUBLAS_WORKSPACE * threads.get(b.instant, 2)
    for b in meter.boundaries}))
