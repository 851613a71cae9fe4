"""PyTorch's tensor parallelism around the reference model, in the plan that torchtitan has.

Column- and row-parallel linears, a vocabulary divided over ranks, and the loss on divided logits.
With sequence parallelism norms and residual stream have s / tp tokens; without, every norm is
replicated. Ref: torchtitan models/llama3/infra/parallelize.py (apply_tp); its NoParallel.
"""
from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training

from .frameworks import Wrapped, local
from .reference_model.model import INITIAL_STD, LanguageModel
from .reference_model.tables import Tables

TOKENS, HEADS = 1, 2                                  # the dim of (b, s, h) that sequence parallelism divides


class TensorParallel(Wrapped):
    """Forward and backward run inside `loss_parallel`."""

    def begin_micro_batch(self, last: bool) -> None:
        super().begin_micro_batch(last)
        self._contexts = ExitStack()
        self._contexts.enter_context(loss_parallel())

    def end_micro_batch(self, last: bool) -> None:
        self._contexts.close()
        super().end_micro_batch(last)


class ReplicatedModule(ParallelStyle):
    """Parameters are replicated DTensors, input and output plain tensors."""

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def enter(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            wrapped = DTensor.from_local(inputs[0], mesh, (Replicate(),), run_check=False)
            return (wrapped, *inputs[1:])

        def leave(module: nn.Module, outputs: Any, mesh: DeviceMesh) -> Any:
            return outputs.to_local()

        hooks: Any = (enter, leave)
        return distribute_module(module, mesh, None, *hooks)


def tensor_parallel(
    model: Model, training: Training, parallel: Parallelism, device: str
) -> TensorParallel:
    """The network as one of tp ranks; made on the meta device, so that only its part is allocated."""
    with torch.device("meta"):
        network = LanguageModel(model, training)
    parallelize(network, model, parallel, init_device_mesh(device, (parallel.tp,)))
    network.to_empty(device=device)
    for parameter in network.parameters():
        nn.init.normal_(local(parameter), std=INITIAL_STD)
    with torch.device(device):
        network.tables = local_tables(model, training, parallel)
    use_own_positions(network, parallel)
    return TensorParallel(network, network)


def parallelize(network: LanguageModel, model: Model, parallel: Parallelism, mesh: Any) -> None:
    """Divides the network over the mesh of tp ranks, in place."""
    parallelize_module(network, mesh, plan_of_ends(network, sequence=parallel.sequence_parallel))
    for block in network.blocks:
        parallelize_module(block, mesh, plan_of_block(block, sequence=parallel.sequence_parallel))
    if model.tie_embeddings:         # both were divided on their own
        network.head.output.weight = network.embedding.token.weight


def local_tables(model: Model, training: Training, parallel: Parallelism) -> Tables:
    """The tables as one rank sees them: of its heads."""
    return Tables(model.model_copy(update={"num_heads": model.num_heads // parallel.tp}), training)


def use_own_positions(network: LanguageModel, parallel: Parallelism) -> None:
    """With sequence parallelism the positions of as many tokens as a rank has: a view of the table."""
    tables = network.tables
    if parallel.sequence_parallel and hasattr(tables, "positions"):
        tables.positions = tables.positions[:len(tables.positions) // parallel.tp]


def plan_of_ends(network: LanguageModel, *, sequence: bool) -> dict[str, Any]:
    """Embedding, its norm, the final norm and the head, whose logits stay divided."""
    stream: Any = Shard(TOKENS) if sequence else Replicate()
    plan: dict[str, Any] = {
        "embedding.token": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head.norm": SequenceParallel() if sequence else ReplicatedModule(),
        "head.output": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1),
                                       use_local_output=False)}
    if hasattr(network.embedding, "norm"):
        plan["embedding.norm"] = normal(sequence, local=True)
    if hasattr(network.embedding, "position"):
        plan["embedding.position"] = (
            SequenceParallel(sequence_dim=0, use_local_output=True) if sequence
            else ReplicatedModule())
    return plan


def normal(sequence: bool, *, local: bool) -> Any:
    """The style of a norm; local: what it returns meets plain tensors."""
    return SequenceParallel(use_local_output=local) if sequence else ReplicatedModule()


def plan_of_block(block: Any, *, sequence: bool) -> dict[str, Any]:
    """Inputs of attention and MLP are gathered once each."""
    stream: Any = Shard(TOKENS) if sequence else Replicate()
    plan: dict[str, Any] = {
        "attention": PrepareModuleInput(input_layouts=(stream, None),
                                        desired_input_layouts=(Replicate(), None)),
        "attention.out": RowwiseParallel(output_layouts=stream),
        "mlp": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),)),
        "mlp.down": RowwiseParallel(output_layouts=stream)}
    for name in ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm"):
        if hasattr(block, name):
            plan[name] = normal(sequence, local="post" in (block.position, *name.split("_")))
    for path in ("attention.project.qkv", "attention.project.query", "attention.project.key",
                 "attention.project.value", "mlp.up", "mlp.gate", "mlp.gate_up"):
        module, _, name = path.rpartition(".")
        if hasattr(block.get_submodule(module), name):
            plan[path] = ColwiseParallel()
    for heads in ("query_heads", "key_heads"):
        if hasattr(getattr(block.attention.project, heads), "norm"):
            plan[f"attention.project.{heads}.norm"] = SequenceParallel(
                sequence_dim=HEADS, use_local_output=True)
    return plan
