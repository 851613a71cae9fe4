"""The program against PyTorch on the CPU: saved bytes by hooks, FLOPs by torch.utils.flop_counter."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from test_closed_forms import random_model
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from gpuledger.compute.conventions import sequence_flops
from gpuledger.compute.parameters import parameter_counts
from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.measures import (
    backward_flops,
    forward_flops,
    hardware_flops,
    parameter_count,
    saved_bytes,
)
from gpuledger.program.model import build
from gpuledger.torch_runs.precision import WEIGHT_DTYPE
from gpuledger.torch_runs.reference_model.model import LanguageModel
from gpuledger.torch_runs.step import default_dtype

CPU = Device(kind="cpu")


def random_training(draw: random.Random, model: Model, **fields: Any) -> Training:
    """What a CPU runs as a GPU does: no autocast (its lists differ), no fused attention."""
    values: dict[str, Any] = {
        "seq_len": draw.randint(2, 20), "micro_batch_size": draw.randint(1, 3),
        "precision": draw.choice(["fp32", "bf16"]), "optimizer": "adamw",
        "attention": draw.choice(["eager", "math"]), "recompute": "none",
        "loss": draw.choice(["cross_entropy", "fp32_logits"]),
        "rmsnorm_implementation": draw.choice(["fused", "composed"])
        if model.norm == "rmsnorm" else "fused"}
    values |= fields
    return Training.model_validate(values | {"global_batch_size": values["micro_batch_size"]})


def random_dropout(draw: random.Random, model: Model) -> Model:
    """The same model, perhaps with dropouts, a window or softcaps."""
    probability = draw.choice([0.0, 0.1])
    changes: dict[str, Any] = {"dropout": probability, "embedding_dropout": probability,
                               "attention_dropout": draw.choice([0.0, 0.1])}
    if model.positions != "alibi" and draw.random() < 0.3:
        changes["sliding_window"] = draw.randint(1, 20)
    if draw.random() < 0.2:
        changes["logits_softcap"] = 30.0
    return Model.model_validate(model.model_dump() | changes)


def storages_saved(model: Model, training: Training) -> int:
    """Bytes of the distinct storages that the forward pass saves: no parameters, tables, tokens."""
    with default_dtype(WEIGHT_DTYPE[training.precision]):
        network = LanguageModel(model, training)
    shape = (training.micro_batch_size, training.seq_len)
    tokens, targets = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    outside = [*network.parameters(), *network.buffers(), tokens, targets]
    known = {tensor.untyped_storage()._cdata for tensor in outside}
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.detach())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        network(tokens, targets)
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}
    return sum(nbytes for storage, nbytes in sizes.items() if storage not in known)


@pytest.mark.parametrize("seed", range(100))
def test_saved_bytes_by_hooks(seed: int) -> None:
    """Difference 0 over the whole network."""
    draw = random.Random(1000 + seed)
    model = random_dropout(draw, random_model(seed))
    training = random_training(draw, model)
    assert saved_bytes(build(model, training, CPU).root) == storages_saved(model, training)


@pytest.mark.parametrize("seed", range(100))
def test_parameters_and_flops_three_ways(seed: int) -> None:
    """The program, PyTorch's counter, and the closed form of `nanotron` (every matrix, full square)."""
    draw = random.Random(seed)
    model = random_model(seed)
    training = random_training(draw, model, precision="fp32")
    with torch.device("meta"):
        network = LanguageModel(model, training)
        tokens = torch.zeros(training.micro_batch_size, training.seq_len, dtype=torch.long)
    program = build(model, training, CPU)
    assert parameter_count(program) == sum(p.numel() for p in network.parameters())
    assert parameter_count(program) == parameter_counts(model).total
    with FlopCounterMode(display=False) as counter:
        loss = network(tokens, tokens)
        assert isinstance(loss, torch.Tensor)
        forward = counter.get_total_flops()
        loss.backward()
    assert forward_flops(program.root) == forward
    assert backward_flops(program.root) == counter.get_total_flops() - forward
    closed_form = sequence_flops(model, training.seq_len, "nanotron").total
    assert hardware_flops(program.root) == training.micro_batch_size * closed_form


@pytest.mark.parametrize("recompute", ["full", "selective", {"every": 2}])
@pytest.mark.parametrize("seed", range(5))
def test_hardware_flops_count_what_runs_again(seed: int, recompute: Any) -> None:
    """Checkpoints stop early: the last product of a recomputed part may not run again."""
    draw = random.Random(seed)
    model = random_model(seed)
    training = random_training(draw, model, precision="fp32", recompute=recompute)
    network = LanguageModel(model, training)
    tokens = torch.zeros(training.micro_batch_size, training.seq_len, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        loss = network(tokens, tokens)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
    assert hardware_flops(build(model, training, CPU).root) == counter.get_total_flops()
