"""The reference model in a framework's own wrapper, as a user would write it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from gpuledger.config.frameworks import DDPOptions, FSDP2Options
from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training

from .reference_model.model import INITIAL_STD, LanguageModel

DTYPES = {None: None, "float32": torch.float32, "bfloat16": torch.bfloat16}


class Wrapped:
    """A network divided by a framework; `called` runs its forward in place of `network`.

    autocasts: mixed precision is autocast's, not the framework's. batches: micro-batches that one call
    takes together.
    """

    batches = 1

    def __init__(self, network: LanguageModel, called: nn.Module, *, autocasts: bool = True,
                 synchronise: Callable[[bool], None] | None = None):
        self.network, self.called, self.autocasts = network, called, autocasts
        self._synchronise = synchronise

    def begin_micro_batch(self, last: bool) -> None:
        """Before each forward; `last` of its step."""
        if self._synchronise is not None:
            self._synchronise(last)

    def end_micro_batch(self, last: bool) -> None:
        """After each backward."""

    def recipe(self, training: Training) -> Training:
        """What the user's own optimizer is made for."""
        return training

    def take(self, optimizer: Any, num_microbatches: int) -> Any:
        """What steps in place of the user's optimizer."""
        return optimizer

    def clip(self, norm: float) -> None:
        """Scales the gradients so that their norm is at most this."""
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), norm)

    def backward(self, loss: Tensor) -> bool:
        """Whether the framework has run backward."""
        return False

    def update(self) -> bool:
        """Whether the framework has run the update, and zero_grad."""
        return False


def undivided(model: Model, training: Training, device: str) -> Wrapped:
    """The whole network."""
    with torch.device(device):
        network = LanguageModel(model, training)
    return Wrapped(network, network)


def fsdp2(model: Model, training: Training, parallel: Parallelism, device: str) -> Wrapped:
    """FSDP2 around every block and around the whole.

    Made on the meta device, so that only shards are allocated. Stage 2 keeps the gathered
    parameters from forward to backward.
    """
    from torch.distributed.fsdp import fully_shard

    from .tensor_parallel import TensorParallel, local_tables, parallelize, use_own_positions

    options = parallel.fsdp2
    network: Any = undivided(model, training, "meta").network
    with torch.device("meta"), default_dtype(DTYPES[options.param_dtype]):
        network.tables = local_tables(model, training, parallel)
    mesh = mesh_of(parallel, device)
    if parallel.tp > 1:
        parallelize(network, model, parallel, mesh["tp"])
    keywords = fsdp2_keywords(parallel, mesh)
    reshard = options.reshard_to or parallel.zero_stage == 3
    for block in network.blocks:
        fully_shard(block, reshard_after_forward=reshard, **keywords)
    fully_shard(network, **keywords)             # the root stays gathered after its forward
    network.to_empty(device="cpu" if options.cpu_offload else device)
    network.tables.to_empty(device=device)
    with torch.device("cpu"), default_dtype(DTYPES[options.param_dtype]):
        values = local_tables(model, training, parallel)
    for buffer, value in zip(network.tables.buffers(), values.buffers(), strict=True):
        buffer.copy_(value)
    use_own_positions(network, parallel)
    for parameter in network.parameters():
        nn.init.normal_(local(parameter), std=INITIAL_STD)
    prefetch(list(network.blocks), options)
    network.set_reduce_scatter_max_input_buffers(options.max_reduce_scatter_inputs)
    every = options.sync_every_micro_batch
    wrapper = TensorParallel if parallel.tp > 1 else Wrapped
    return wrapper(network, network, autocasts=options.param_dtype is None,
                   synchronise=None if every else network.set_requires_gradient_sync)


def mesh_of(parallel: Parallelism, device: str) -> Any:
    """Copies of the model, ranks that share its parameters, and ranks that share its layers."""
    from torch.distributed.device_mesh import init_device_mesh

    copies = parallel.fsdp2.replicate
    sizes = {"replicate": copies, "shard": parallel.dp * parallel.cp // copies, "tp": parallel.tp}
    axes = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    return init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))


def fsdp2_keywords(parallel: Parallelism, mesh: Any) -> dict[str, Any]:
    """The arguments of fully_shard that these options mean."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

    options = parallel.fsdp2
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[options.param_dtype],
                                  reduce_dtype=DTYPES[options.reduce_dtype])
    return {
        "mesh": mesh["replicate", "shard"] if options.replicate > 1 else mesh["shard"],
        "mp_policy": policy,
        "offload_policy": CPUOffloadPolicy() if options.cpu_offload else OffloadPolicy(),
    }


def prefetch(blocks: list[Any], options: FSDP2Options) -> None:
    """Explicit prefetching of the next blocks, forward and backward."""
    ahead, back = options.forward_prefetch, options.backward_prefetch
    for place, block in enumerate(blocks):
        if ahead:
            block.set_modules_to_forward_prefetch(blocks[place + 1:place + 1 + ahead])
        if back:
            block.set_modules_to_backward_prefetch(blocks[max(0, place - back):place][::-1])


class default_dtype:  # noqa: N801 (a context, written as a function is)
    """New floating-point tensors have this dtype inside the block; None changes nothing."""

    def __init__(self, dtype: torch.dtype | None):
        self.dtype = dtype or torch.get_default_dtype()

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self.before)


def ddp(network: LanguageModel, options: DDPOptions) -> Wrapped:
    """DistributedDataParallel. Two things the other ranks would do are left out.

    Nobody compares the parameters' shapes, and a hook hands each bucket on: the fake group's
    futures carry no tensor. The bucket is reduced in place without the hook too, so the memory is
    the same.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel, distributed

    module: Any = distributed
    module._verify_param_shape_across_processes = lambda *_, **__: None
    wrapper = DistributedDataParallel(
        network, bucket_cap_mb=options.bucket_cap_mb,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        find_unused_parameters=options.find_unused_parameters,
        static_graph=options.static_graph)
    hooks: Any = default_hooks
    hooks.dist = ReducedAtOnce(torch.distributed)
    # DDP reads a hook's annotations, which are strings in this file; a lambda has none.
    hook = {"fp16": hooks.fp16_compress_hook, "bf16": hooks.bf16_compress_hook,
            "none": lambda state, bucket: done(bucket.buffer())}[options.compression]
    wrapper.register_comm_hook(None, hook)
    return Wrapped(network, wrapper)


class ReducedAtOnce:
    """torch.distributed, but for an all_reduce whose future has the tensor."""

    def __init__(self, module: Any):
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def all_reduce(self, tensor: Tensor, group: Any = None, async_op: bool = False) -> Any:
        """A work handle, as with async_op."""
        return SimpleNamespace(get_future=lambda: done([tensor]))


def done(bucket: Any) -> torch.futures.Future[Any]:
    """The bucket as if it had been reduced."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(bucket)
    return future


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return getattr(tensor, "_local_tensor", tensor)
