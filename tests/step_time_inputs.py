"""Devices, software and layouts with round numbers for the tests of step time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuledger.compute.step_time.curves import nccl, software
from gpuledger.compute.step_time.inputs import (
    AttentionRate,
    Decoder,
    Device,
    Layout,
    Product,
    Software,
)

A100 = Device(
    num_sms=108,
    bandwidth_bytes_per_second=2e12,
    link_bytes_per_second=300e9,
    network_bytes_per_second=25e9,
    products=Product(312e12, 271.2e12),
    head_products=Product(312e12, 271.2e12),
    attention=AttentionRate(0.60, 0.55),
    nccl=nccl(),
)
GPT = Decoder(
    num_layers=24,
    hidden_size=2048,
    num_heads=16,
    num_kv_heads=16,
    head_dim=128,
    ffn_hidden_size=8192,
    vocab_size=51200,
    seq_len=2048,
)


def layout(**changes: Any) -> Layout:
    return replace(Layout(gpus=8, global_batch_size=64, micro_batch_size=2), **changes)


def megatron(**changes: Any) -> Software:
    return software("megatron-core", **{"host_seconds": 12e-6, **changes})
