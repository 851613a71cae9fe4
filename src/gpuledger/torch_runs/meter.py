"""Who owns the live bytes: parameters, gradients, optimizer, saved activations, the rest.

`account_for_step` runs one step while the allocator records its events and hooks note what autograd
saves. From both follows the owner of every allocation, and with it the account at each boundary
and at the peak. Bytes are requested bytes; what rounding and unsplit tails add to them is a row
of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpuledger.memory.instants import rounding_of

from .frameworks import local
from .optimizers import optimizer_tensors
from .saved import SavedNotes, allocations_so_far, noting_saved
from .step import Trainer
from .stream import recording
from .trace import Trace

OWNERS = (
    "parameters",
    "gradients",
    "optimizer",  # states, master copies, a GradScaler's scale
    "activations",  # saved for the backward pass
    "constants",  # tables and the batch
    "temporaries",  # of this step and none of the others, also what a node keeps without saving it
    "workspaces",  # older than this step and nobody's tensor: cuBLAS's, DDP's buckets
)


@dataclass(frozen=True)
class Account:
    """Requested bytes by owner at one instant, and what they take of the allocator.

    At a boundary the owners' bytes plus rounding_bytes, which has unsplit tails in it, are
    allocated_bytes. At the peak, which lies inside a phase, rounding_bytes is rounding up to 512
    bytes alone, and allocated_bytes is not known.
    """

    instant: str
    owned_bytes: dict[str, int]
    rounding_bytes: int
    allocated_bytes: int | None

    @property
    def requested_bytes(self) -> int:
        return sum(self.owned_bytes.values())


@dataclass(frozen=True)
class StepAccount:
    """The accounts of one step: at every boundary in order, and at its peak. [V2]"""

    boundaries: list[Account]
    peak: Account


@dataclass(frozen=True)
class Block:
    """A live block of the caching allocator."""

    requested_bytes: int
    allocated_bytes: int


def live_blocks() -> dict[int, Block]:
    """Live blocks of the current device, by address."""
    device = torch.cuda.current_device()
    return {
        block["address"]: Block(block["requested_size"], block["size"])
        for segment in torch.cuda.memory_snapshot() if segment["device"] == device
        for block in segment["blocks"] if block["state"] == "active_allocated"
    }


def addresses(tensors: list[Tensor]) -> set[int]:
    """Of their storages on this rank; views share one."""
    return {local(tensor).untyped_storage().data_ptr() for tensor in tensors if tensor.is_cuda}


def owners_by_address(trainer: Trainer) -> dict[int, str]:
    """Everything that a variable of the training script reaches, without autograd's graph."""
    parameters = list(trainer.network.parameters())
    found = {
        "constants": [*trainer.network.buffers(), trainer.tokens, trainer.targets],
        "optimizer": [*optimizer_tensors(trainer.optimizer), *scaler_tensors(trainer.scaler)],
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "parameters": [p.detach() for p in parameters],
    }
    return {address: owner for owner, tensors in found.items() for address in addresses(tensors)}


def scaler_tensors(scaler: torch.amp.GradScaler) -> list[Tensor]:
    """The scale and how many steps it has held; made by the first step."""
    if not scaler.is_enabled():
        return []
    kept = (scaler._scale, scaler._growth_tracker)
    return [tensor for tensor in kept if tensor is not None]


class Observation:
    """What is seen at a boundary of the recorded step."""

    def __init__(self, trainer: Trainer, instant: str):
        torch.cuda.synchronize()
        self.instant = instant
        self.allocations = allocations_so_far()
        self.blocks = live_blocks()
        self.owners = owners_by_address(trainer)
        self.allocated_bytes: int = torch.cuda.memory_stats()["allocated_bytes.all.current"]


class RecordedStep:
    """A trace, what was seen before it and at its boundaries, and what autograd saved."""

    def __init__(
        self, start: Observation, trace: Trace, seen: list[Observation], notes: SavedNotes
    ):
        self.start, self.trace, self.seen = start, trace, seen
        self.owners: dict[int, str] = {}                    # by number of the allocation
        for address, allocations in notes.entries:
            self.own(address, allocations, "activations")
        for observation in seen:
            for address, owner in observation.owners.items():
                self.own(address, observation.allocations, owner)

    def own(self, address: int, allocations: int, owner: str) -> None:
        number = self.trace.at(address, allocations - self.start.allocations)
        if number is not None:
            self.owners[number] = owner

    def owner(self, address: int, allocations: int) -> str:
        """Of the storage that lives at this address after so many allocations of the process."""
        number = self.trace.at(address, allocations - self.start.allocations)
        if number is None:
            return self.start.owners.get(address, "workspaces")
        return self.owners.get(number, "temporaries")

    def at_boundary(self, seen: Observation) -> Account:
        """The owners' requested bytes, and what rounding and unsplit tails add."""
        owned, rounding = dict.fromkeys(OWNERS, 0), 0
        for address, block in seen.blocks.items():
            owned[self.owner(address, seen.allocations)] += block.requested_bytes
            rounding += block.allocated_bytes - block.requested_bytes
        return Account(seen.instant, owned, rounding, seen.allocated_bytes)

    def at_peak(self) -> Account:
        """The first highest sum of requested bytes, in the phase in which it lies."""
        owned = dict.fromkeys(OWNERS, 0)
        rounding = rounding_at_highest = allocations = allocations_at_highest = highest = 0
        for address, block in self.start.blocks.items():
            owned[self.start.owners.get(address, "workspaces")] += block.requested_bytes
            rounding += rounding_of(block.requested_bytes)
        at_highest, live = owned, sum(owned.values())
        for move in self.trace.moves:
            allocations += move.sign > 0
            owner = (self.start.owners.get(move.address, "workspaces") if move.number is None
                     else self.owners.get(move.number, "temporaries"))
            owned[owner] += move.sign * move.nbytes
            live += move.sign * move.nbytes
            rounding += move.sign * rounding_of(move.nbytes)
            if live > highest:
                highest, allocations_at_highest = live, allocations
                at_highest, rounding_at_highest = dict(owned), rounding
        return Account(self.phase(allocations_at_highest), at_highest, rounding_at_highest, None)

    def phase(self, allocations: int) -> str:
        """The boundary that ends the phase of this allocation of the step."""
        first = self.start.allocations
        ends = (o.instant for o in self.seen if o.allocations - first >= allocations)
        return next(ends, self.seen[-1].instant)


def account_for_step(trainer: Trainer) -> StepAccount:
    """Runs one step of a trainer that is in steady state."""
    start = Observation(trainer, "start")
    seen: list[Observation] = []
    with recording() as history, noting_saved() as notes:
        trainer.step(lambda instant: seen.append(Observation(trainer, instant)))
        trace = Trace(history.entries())
    recorded = RecordedStep(start, trace, seen, notes)
    return StepAccount([recorded.at_boundary(o) for o in seen], recorded.at_peak())
