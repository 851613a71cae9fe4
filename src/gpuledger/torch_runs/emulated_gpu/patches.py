"""What `emulate` changes in PyTorch for a program that runs as rank r of N in one process.

Each patch is one function: its docstring's first line is what it does, the rest is why. None of
them touches the allocator, autograd, an optimizer or a collective on device tensors.
"""
from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from .import_hooks import when_imported
from .store import LonelyStore

# Modules whose functions are replaced; to a type checker that is an error, which is the point.
c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
multiprocessing: Any = importlib.import_module("torch.multiprocessing")


@dataclass(frozen=True)
class Patch:
    """One change: its name, what it does, and why it is needed."""

    name: str
    what: str
    why: str


# The C++ side holds a store by reference only: the Python object must outlive every group made
# with it.
_stores: list[LonelyStore] = []


def _new_store() -> LonelyStore:
    _stores.append(LonelyStore())
    return _stores[-1]


def rendezvous() -> None:
    """init_process_group gets a store that never waits.

    The other ranks do not exist, so torchrun's TCP store would wait for them until its timeout.
    """

    def alone(url: str, rank: int = -1, world_size: int = -1,
              **_: Any) -> Iterator[tuple[LonelyStore, int, int]]:
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        if rank < 0:
            rank = int(query.get("rank", os.environ.get("RANK", "0")))
        if world_size < 0:
            world_size = int(query.get("world_size", os.environ.get("WORLD_SIZE", "1")))
        yield _new_store(), rank, world_size

    c10d.rendezvous = alone


def host_groups() -> None:
    """Gloo process groups (host tensors) are PyTorch's own fake groups, which move nothing.

    Gloo connects every pair of ranks with sockets, and the others do not exist. Host tensors are
    not measured; each rank is taken to hold what this one holds.
    """
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers "fake"

    def without_gloo(arguments: dict[str, Any]) -> None:
        if arguments.get("backend") is not None:
            arguments["backend"] = str(arguments["backend"]).replace("gloo", "fake")

    _change_new_groups(without_gloo)
    c10d.Backend.default_device_backend_map["cpu"] = "fake"


def subgroups() -> None:
    """init_process_group's device_id is ignored: subgroups get new communicators.

    With it they are split from the parent's, and a split communicator does not say how many ranks
    it has, which gathered objects need to know. No tensor is involved either way.
    """

    def without_device(arguments: dict[str, Any]) -> None:
        arguments.pop("device_id", None)

    _change_new_groups(without_device)


def _change_new_groups(change: Callable[[dict[str, Any]], None]) -> None:
    """Applies ``change`` to the arguments with which every process group is made."""
    original = c10d._new_process_group_helper
    signature = inspect.signature(original)

    @functools.wraps(original)
    def changed(*positional: Any, **named: Any) -> Any:
        bound = signature.bind(*positional, **named)
        change(bound.arguments)
        return original(*bound.args, **bound.kwargs)

    c10d._new_process_group_helper = changed


def broadcast_objects() -> None:
    """Object lists are not sent: this rank keeps its own; receiving one is an error that says so.

    On another rank than the source, PyTorch would unpickle bytes that nobody sent.
    """

    def broadcast_object_list(object_list: list[Any], *_: Any, **__: Any) -> None:
        return None

    def scatter_object_list(scatter_object_output_list: list[Any],
                            scatter_object_input_list: list[Any] | None = None,
                            *_: Any, **__: Any) -> None:
        if scatter_object_input_list:
            rank = dist.get_rank() % len(scatter_object_input_list)
            scatter_object_output_list[0] = scatter_object_input_list[rank]

    def recv_object_list(object_list: list[Any], *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            "an emulated rank has no peer to receive objects from; pipeline stages need static "
            "shapes: pass input_args, output_args, input_grads and output_grads to PipelineStage")

    for function in (broadcast_object_list, scatter_object_list, recv_object_list):
        setattr(dist, function.__name__, function)
        setattr(c10d, function.__name__, function)


def spawn() -> None:
    """torch.multiprocessing.spawn calls its function here, once, as this process's local rank.

    The other processes would be the other ranks; one rank is what is measured.
    """

    def call_here(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1,
                  *_: Any, **__: Any) -> None:
        fn(int(os.environ.get("LOCAL_RANK", "0")) % nprocs, *args)

    multiprocessing.spawn = call_here


def pipeline_vote() -> None:
    """A pipeline stage decides alone whether shapes are static.

    torch.distributed.pipelining multiplies the votes of all stages on the device, where products
    are not computed. The vote of this stage stands for all.
    """

    def own_vote(module: ModuleType) -> None:
        stage = module.PipelineStage
        if not hasattr(stage, "_warmup_forward_vote"):
            return

        def forward_vote(self: Any, has_backward: bool, received_acc: Any = None) -> Any:
            dynamic = module.InferenceMode.needs_dynamic(self._user_meta, has_backward)
            self._own_vote = int(not dynamic)
            return torch.tensor([self._own_vote], dtype=torch.int32, device=self.device)

        def backward_result(self: Any, received_result: Any = None) -> Any:
            return torch.tensor([self._own_vote], dtype=torch.int32, device=self.device)

        stage._warmup_forward_vote = forward_vote
        stage._warmup_backward_result = backward_result

    when_imported("torch.distributed.pipelining.stage", own_vote)


def deepspeed_agreement() -> None:
    """DeepSpeed ZeRO-3 does not compare its lists with rank 0.

    It would compare with values that rank 0 broadcasts, and there is no rank 0 to do it.
    """

    def agree(module: ModuleType) -> None:
        for name in vars(module):
            if name.startswith("assert_") and name.endswith("_same_as_other_ranks"):
                setattr(module, name, lambda values: None)

    when_imported("deepspeed.runtime.zero.utils", agree)


def finished_collectives() -> None:
    """After each optimizer step, buffers of finished collectives are let go of.

    NCCL's watchdog does that every 100 ms, for collectives that nobody waits for (DDP's buckets).
    A step takes longer than that on a GPU, but a few milliseconds here: without this they would
    pile up.
    """

    def let_go(*_: Any) -> None:
        for group in list(c10d._world.pg_map):
            if "nccl" in c10d._world.pg_map[group][0]:
                backend = group._get_backend(torch.device("cuda"))
                # torch 2.9 has it on the group only.
                waiter = backend if hasattr(backend, "_wait_for_pending_works") else group
                waiter._wait_for_pending_works()

    register_optimizer_step_post_hook(let_go)


PATCHES: tuple[Callable[[], None], ...] = (
    rendezvous, host_groups, subgroups, broadcast_objects, spawn, pipeline_vote,
    deepspeed_agreement, finished_collectives)


def apply_patches() -> list[Patch]:
    """Applies every patch and says what was done."""
    for patch in PATCHES:
        patch()
    return [_described(patch) for patch in PATCHES]


def _described(patch: Callable[[], None]) -> Patch:
    what, _, why = inspect.cleandoc(patch.__doc__ or "").partition("\n\n")
    return Patch(patch.__name__, what, " ".join(why.split()))
