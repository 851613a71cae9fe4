"""Sizes as NumPy arrays: one walk for many sequence lengths gives what each length gives alone."""
from __future__ import annotations

import numpy as np
import pytest

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.memory.run import steady_step
from gpuledger.program.device import Device
from gpuledger.program.model import build

SEQ_LENS = np.array([130, 512, 1000, 4096, 6000])
MODEL = dict(
    num_layers=2, hidden_size=256, num_heads=4, num_kv_heads=4, head_dim=64, ffn_hidden_size=1000,
    vocab_size=3000, max_position_embeddings=9000, norm="rmsnorm", activation="swiglu",
    positions="rotary", qkv_projection="separate", tie_embeddings=False, dropout=0.0,
    attention_dropout=0.0, embedding_dropout=0.0)
TRAINING = dict(seq_len=512, micro_batch_size=2, global_batch_size=2, precision="bf16-mixed",
                recompute="full", loss="cross_entropy")


def peak(model: Model, training: Training):
    live = best = 0
    program = build(model, training, Device())
    for sign, _, nbytes in steady_step(program, training, 1).memory.events:
        live = live + sign * nbytes
        best = np.maximum(best, live)
    return best


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "muon"])
@pytest.mark.parametrize("attention", ["eager", "math", "efficient"])
@pytest.mark.parametrize("bias", [False, True])
def test_arrays_equal_single_runs(bias, attention, optimizer):
    model = Model.model_validate(MODEL | {"bias": bias})
    training = Training.model_validate(TRAINING | {"attention": attention, "optimizer": optimizer})
    alone = [peak(model, training.model_copy(update={"seq_len": int(s)})) for s in SEQ_LENS]
    together = peak(model, training.model_copy(update={"seq_len": SEQ_LENS}))
    assert together.tolist() == alone
