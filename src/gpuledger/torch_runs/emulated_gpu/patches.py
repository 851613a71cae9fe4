"""Everything that `emulate` changes in PyTorch for a program that runs as rank r of N in one process.

Each patch is one function: its docstring's first line is what it does, the rest is why. None of them
touches the allocator, autograd, an optimizer or a collective on device tensors.
"""
from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from .store import LonelyStore


@dataclass(frozen=True)
class Patch:
    """One change: its name, what it does, and why it is needed."""

    name: str
    what: str
    why: str


# The C++ side holds a store by reference only: the Python object must outlive every group made with it.
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
    """Gloo process groups (host tensors) move nothing.

    Gloo connects every pair of ranks with sockets, and the others do not exist. Host tensors are not
    measured; each rank is taken to hold what this one holds.
    """
    from torch.testing._internal.distributed import fake_pg  # importing it registers the backend

    create = fake_pg._create_fake_pg

    def silent_group(store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
        options = c10d._DistributedBackendOptions()
        options.group_rank, options.group_size = rank, size
        return create(options, None)

    c10d.ProcessGroupGloo = silent_group


def broadcast_objects() -> None:
    """broadcast_object_list and scatter_object_list leave this rank's own objects.

    On another rank than the source they would unpickle bytes that nobody sent.
    """

    def broadcast_object_list(object_list: list[Any], *_: Any, **__: Any) -> None:
        return None

    def scatter_object_list(scatter_object_output_list: list[Any],
                            scatter_object_input_list: list[Any] | None = None,
                            *_: Any, **__: Any) -> None:
        if scatter_object_input_list:
            rank = dist.get_rank() % len(scatter_object_input_list)
            scatter_object_output_list[0] = scatter_object_input_list[rank]

    for name, function in (("broadcast_object_list", broadcast_object_list),
                           ("scatter_object_list", scatter_object_list)):
        setattr(dist, name, function)
        setattr(c10d, name, function)


def spawn() -> None:
    """torch.multiprocessing.spawn calls its function here, once, as this process's local rank.

    The other processes would be the other ranks; one rank is what is measured.
    """

    def call_here(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1,
                  *_: Any, **__: Any) -> None:
        fn(int(os.environ.get("LOCAL_RANK", "0")) % nprocs, *args)

    torch.multiprocessing.spawn = call_here


PATCHES: tuple[Callable[[], None], ...] = (rendezvous, host_groups, broadcast_objects, spawn)


def apply_patches() -> list[Patch]:
    """Applies every patch and says what was done."""
    for patch in PATCHES:
        patch()
    return [_described(patch) for patch in PATCHES]


def _described(patch: Callable[[], None]) -> Patch:
    what, _, why = inspect.cleandoc(patch.__doc__ or "").partition("\n\n")
    return Patch(patch.__name__, what, " ".join(why.split()))
