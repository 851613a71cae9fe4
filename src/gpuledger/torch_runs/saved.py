"""Which storages autograd saves for backward, inside checkpoints too, noted as they are saved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Pack = Callable[[Tensor], Any]


class SavedNotes:
    """(address of a saved storage, number of allocations before it was saved), in order.

    The number tells which allocation it was: the latest one at this address.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []

    def note(self, tensor: Tensor) -> None:
        """Of a CUDA tensor; others are not on the device."""
        if tensor.is_cuda:
            self.entries.append((tensor.untyped_storage().data_ptr(), allocations_so_far()))


def allocations_so_far() -> int:
    """Allocations of the current device since the process began."""
    counters = torch.cuda.memory_stats_as_nested_dict()
    number: int = counters["allocation"]["all"]["allocated"]
    return number


@contextmanager
def noting_saved() -> Iterator[SavedNotes]:
    """Notes what is saved inside the block. It keeps no tensor alive that autograd does not."""
    notes = SavedNotes()

    def pack(tensor: Tensor) -> Tensor:
        notes.note(tensor)
        return tensor.detach() if tensor.requires_grad else tensor      # no cycle through an output

    with noting_recomputed(notes), saved_tensors_hooks(pack, lambda tensor: tensor):
        yield notes


@contextmanager
def noting_recomputed(notes: SavedNotes) -> Iterator[None]:
    """Hooks do not nest: a checkpoint's own hide ours, so we wrap those of its second run.

    Those of its first run save nothing, they leave a place holder.
    """
    hook: Any = torch.utils.checkpoint._recomputation_hook
    enter = hook.__enter__

    def noting_enter(self: Any) -> None:
        self.pack_hook = noting(self.pack_hook, notes)
        enter(self)

    hook.__enter__ = noting_enter
    try:
        yield
    finally:
        hook.__enter__ = enter


def noting(pack: Pack, notes: SavedNotes) -> Pack:
    """`pack`, which first notes the tensor."""

    @functools.wraps(pack)
    def noted(tensor: Tensor) -> Any:
        notes.note(tensor)
        return pack(tensor)

    return noted
