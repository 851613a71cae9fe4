"""Bytes that autograd keeps per decoder block: the program against closed forms and measured rows.

The rows were measured on modules of their own (tests/data/saved_bytes_per_block.json says how).
s sequence, b batch, h hidden, a heads, f MLP width; c bytes of a product's operand, e of the residual
stream; A = a s s b. The block's input is not counted. The eager causal mask is a table here, and not
counted either.
"""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.measures import saved_bytes
from gpuledger.program.model import build

TABLE = json.loads((Path(__file__).parent / "data" / "saved_bytes_per_block.json").read_text())
SIZES = TABLE["sizes"]
ROWS = TABLE["rows"]


def records(row):
    gpt2 = row["family"] == "gpt2"
    h, a, s, b = (SIZES[k] for k in ("hidden_size", "num_heads", "seq_len", "micro_batch_size"))
    model = Model.model_validate(dict(
        num_layers=1, hidden_size=h, num_heads=a, num_kv_heads=row["num_kv_heads"], head_dim=h // a,
        ffn_hidden_size=SIZES["ffn_hidden_size"][row["family"]], vocab_size=8,
        max_position_embeddings=s, norm="layernorm" if gpt2 else "rmsnorm",
        activation="gelu_tanh" if gpt2 else "swiglu", positions="learned" if gpt2 else "rotary",
        qkv_projection="fused" if gpt2 else "separate", bias=gpt2, tie_embeddings=True,
        dropout=row["dropout"], attention_dropout=row["dropout"], embedding_dropout=0.0))
    training = Training.model_validate(dict(
        seq_len=s, micro_batch_size=b, global_batch_size=b, precision=row["precision"],
        optimizer="adamw", attention=row["attention"], recompute="none", loss="cross_entropy",
        rmsnorm_implementation=row["rmsnorm"]))
    return model, training


def program_bytes(row):
    model, training = records(row)
    return saved_bytes(build(model, training, Device()).root.find("block 0"), arguments=False)


def named(row):
    return "-".join(str(row[k]) for k in ("family", "precision", "attention", "dropout", "rmsnorm",
                                          "num_kv_heads"))


def attention_core(row, c):
    """From queries, keys and values to the core's output, which is the output projection's input."""
    a, s, b, h = (SIZES[k] for k in ("num_heads", "seq_len", "micro_batch_size", "hidden_size"))
    scores, dropped = a * s * s * b, row["dropout"] > 0
    mixed = row["precision"] == "bf16-mixed"
    out = c * s * b * h
    if row["attention"] == "eager":
        softmax = (4 if mixed else c) * scores
        return softmax + dropped * scores + (c * scores if mixed or dropped else 0) + out
    if row["attention"] == "math":                    # in fp32, whatever the inputs are
        return 4 * scores + dropped * (scores + 4 * scores) + out
    statistics = 4 * a * s * b                        # s is a multiple of 32, to which efficient pads
    random_state = {"flash": 24, "cudnn": 16, "efficient": 0 if dropped else 16}[row["attention"]]
    return out + statistics + random_state


def gpt2_closed_form(row):
    """32 sbh (fused kernels, bf16) and 34 with dropout, less the input: Korthikanti's terms, made exact."""
    h, s, b = (SIZES[k] for k in ("hidden_size", "seq_len", "micro_batch_size"))
    c = 4 if row["precision"] == "fp32" else 2
    e = 2 if row["precision"] == "bf16" else 4
    sb, sbh, dropped = s * b, s * b * h, row["dropout"] > 0
    qkv = 12 * sbh if row["attention"] == "math" else 3 * c * sbh
    copies = 24 * h * h if row["precision"] == "bf16-mixed" else 0
    norms, masks = 16 * sb, 2 * dropped * sbh
    return (norms + c * sbh + qkv + attention_core(row, c) + masks + e * sbh + 9 * c * sbh + copies)


def llama_closed_form(row):
    """16 sbh + 8 sbf in bf16, less the input, and its variants."""
    h, s, b, a = (SIZES[k] for k in ("hidden_size", "seq_len", "micro_batch_size", "num_heads"))
    f, kv = SIZES["ffn_hidden_size"]["llama"], row["num_kv_heads"]
    mixed = row["precision"] == "bf16-mixed"
    c = 4 if row["precision"] == "fp32" else 2
    e = 2 if row["precision"] == "bf16" else 4
    sb, sbh = s * b, s * b * h
    norms = 8 * sb + e * sbh
    if row["rmsnorm"] == "composed":
        norms = 8 * sb + (8 * sbh if row["precision"] == "bf16" else e * sbh) + 2 * e * sbh
    inputs = (3 if mixed else 1) * c * sbh + (2 if mixed else 1) * c * sbh
    if row["attention"] == "math":
        qkv = 12 * sbh
    elif row["attention"] == "eager" or kv > 1:
        qkv = 3 * c * sbh
    else:                                             # one kv head is a view of stride 0; autocast copies k
        qkv = c * sbh + (c * sbh if mixed else c * sbh // a) + c * sbh // a
    copies = 2 * (2 * h * h + 2 * h * h * kv // a + 3 * h * f) if mixed else 0
    return norms + inputs + qkv + attention_core(row, c) + 4 * c * sb * f + copies


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_program_equals_measured_row(row):
    """The rows hold the eager mask, and the efficient kernel's random state, which dropout puts on the host."""
    s = SIZES["seq_len"]
    mask = s * s if row["attention"] == "eager" else 0
    on_the_host = 16 if row["attention"] == "efficient" and row["dropout"] else 0
    assert program_bytes(row) == row["saved_bytes"] - mask - on_the_host


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_closed_form_equals_the_program(row):
    closed_form = gpt2_closed_form if row["family"] == "gpt2" else llama_closed_form
    assert closed_form(row) == program_bytes(row)


def test_korthikanti_is_exact_for_bf16_eager_with_dropout():
    """sbh (34 + 5 a s / h), and what the paper leaves out: mean and rstd of two norms."""
    row = {"family": "gpt2", "precision": "bf16", "attention": "eager", "dropout": 0.1,
           "rmsnorm": "fused", "num_kv_heads": SIZES["num_heads"]}
    model, training = records(row)
    h, a, s, b = (SIZES[k] for k in ("hidden_size", "num_heads", "seq_len", "micro_batch_size"))
    block = build(model, training, Device()).root.find("block 0")
    assert saved_bytes(block) == s * b * h * 34 + 5 * a * s * s * b + 16 * s * b
