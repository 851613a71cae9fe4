"""What each row's block saves: python saved_per_block.py saved_bytes_per_block.json."""
from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.torch_runs.precision import WEIGHT_DTYPE, autocast
from gpuledger.torch_runs.reference_model.block import Block
from gpuledger.torch_runs.reference_model.tables import Tables
from gpuledger.torch_runs.step import default_dtype


def records(row: dict[str, Any], sizes: dict[str, Any]) -> tuple[Model, Training]:
    gpt2 = row["family"] == "gpt2"
    h, a, s, b = (sizes[k] for k in ("hidden_size", "num_heads", "seq_len", "micro_batch_size"))
    model = Model.model_validate(dict(
        num_layers=1, hidden_size=h, num_heads=a, num_kv_heads=row["num_kv_heads"], head_dim=h // a,
        ffn_hidden_size=sizes["ffn_hidden_size"][row["family"]], vocab_size=8,
        max_position_embeddings=s, norm="layernorm" if gpt2 else "rmsnorm",
        activation="gelu_tanh" if gpt2 else "swiglu", positions="learned" if gpt2 else "rotary",
        qkv_projection="fused" if gpt2 else "separate", bias=gpt2, tie_embeddings=True,
        dropout=row["dropout"], attention_dropout=row["dropout"], embedding_dropout=0.0))
    training = Training.model_validate(dict(
        seq_len=s, micro_batch_size=b, global_batch_size=b, precision=row["precision"],
        optimizer="adamw", attention=row["attention"], recompute="none", loss="cross_entropy",
        rmsnorm_implementation=row["rmsnorm"]))
    return model, training


def saved_bytes(model: Model, training: Training) -> int:
    """Storages counted once. An eager block's mask counts: PyTorch keeps it, whoever made it."""
    dtype = WEIGHT_DTYPE[training.precision]
    with default_dtype(dtype), torch.device("cuda"):
        block, tables = Block(model, training, 0), Tables(model, training)
        shape = (training.micro_batch_size, training.seq_len, model.hidden_size)
        x = torch.empty(shape, requires_grad=True)
    outside = [x, *block.parameters(), *(t for n, t in tables.named_buffers() if n != "mask")]
    known = {t.untyped_storage()._cdata for t in outside}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    with autocast(training.precision, "cuda"), torch.autograd.graph.saved_tensors_hooks(
            pack, lambda tensor: tensor):
        y = block(x, tables)
    assert y.shape == x.shape
    return sum(nbytes for storage, nbytes in saved.items() if storage not in known)


def main() -> None:
    with open(sys.argv[1]) as file:
        table = json.load(file)
    found = []
    for row in table["rows"]:
        fake = FakeTensorMode() if row["attention"] == "cudnn" else contextlib.nullcontext()
        with fake:
            found.append(saved_bytes(*records(row, table["sizes"])))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
