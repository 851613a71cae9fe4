"""Which parameters DeepSpeed's stage 3 gathers, prefetches and lets go of at each module. [D8] [D9]

From the second micro-batch on it knows the order in which modules run. It gathers what a module
needs, then the next ones' parameters up to stage3_prefetch_bucket_size, while fewer than
stage3_max_live_parameters are there; a module's parameters go when it ends, unless they are persistent,
were skipped by the prefetching, or are used again within stage3_max_reuse_distance elements.
Ref: deepspeed/runtime/zero/partitioned_param_coordinator.py, DeepSpeed 0.19.8.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from gpuledger.config.frameworks import DeepSpeedOptions
from gpuledger.program.tensor import Tensor

from .modules import Module

NEVER = -(10**10)


class Storage(Protocol):
    """Who allocates and frees what the coordinator decides."""

    def gather(self, weights: Sequence[Tensor]) -> None:
        """One collective for all of them."""

    def wait(self, weight: Tensor) -> None:
        """The collective of this one is needed now."""

    def free(self, weight: Tensor) -> None:
        """Only the rank's own part stays."""


class Nowhere:
    """A storage for a run through the order alone."""

    def gather(self, weights: Sequence[Tensor]) -> None:
        pass

    def wait(self, weight: Tensor) -> None:
        pass

    def free(self, weight: Tensor) -> None:
        pass


class Coordinator:
    """The state of every parameter of one rank; `visits` are the modules of a micro-batch in order.

    Weights are gathered in the order of `weights`.
    """

    def __init__(self, visits: Sequence[Module], weights: Sequence[Tensor], options: DeepSpeedOptions):
        self.visits, self.options = visits, options
        self.place = {weight: place for place, weight in enumerate(weights)}
        self.persistent = {w for w in weights if w.numel <= options.stage3_param_persistence_threshold}
        self.available: set[Tensor] = set()
        self.in_flight: set[Tensor] = set()
        self.users: dict[Tensor, set[Module]] = {weight: set() for weight in weights}
        self.backward_modules: dict[Module, None] = {}
        self.let_go: dict[tuple[Module, int], set[Tensor]] = {}
        self.storage: Storage = Nowhere()
        self.begin()

    def begin(self) -> None:
        """A micro-batch begins."""
        self.visit = 0
        self.live_elements = 0
        self.fetched_for: dict[Tensor, int] = {}
        self.queue = deque((weight, visit) for visit, module in enumerate(self.visits)
                           for weight in self.in_order(module.weights))

    def in_order(self, weights: Iterable[Tensor]) -> list[Tensor]:
        return sorted(weights, key=self.place.__getitem__)

    def missing(self, weight: Tensor) -> bool:
        return weight not in self.available and weight not in self.in_flight

    def fetch(self, module: Module, *, forward: bool) -> None:
        """Gather and wait for the module's own parameters, then prefetch."""
        if not forward:
            self.backward_modules[module] = None
        self.gather([weight for weight in module.weights if self.missing(weight)])
        for weight in module.weights:
            self.users[weight].add(module)
            if weight in self.in_flight:
                self.in_flight.discard(weight)
                self.available.add(weight)
                self.storage.wait(weight)
        self.skip_own(module)
        if self.options.stage3_prefetch_bucket_size > 0:
            self.prefetch()
        self.visit += 1

    def gather(self, weights: Sequence[Tensor]) -> None:
        if weights:
            self.live_elements += sum(int(weight.numel) for weight in weights)
            self.in_flight.update(weights)
            self.storage.gather(self.in_order(weights))

    def skip_own(self, module: Module) -> None:
        """The module's own parameters need no prefetching any more."""
        waiting = {weight for weight in module.weights
                   if self.fetched_for.get(weight, NEVER) < self.visit}
        skipped: set[Tensor] = set()
        while self.queue and len(skipped) < len(waiting):
            weight, visit = self.queue.popleft()
            self.fetched_for[weight] = visit
            skipped.add(weight)

    def prefetch(self) -> None:
        """Parameters of the next modules, in one collective."""
        room = min(self.options.stage3_max_live_parameters - self.live_elements,
                   self.options.stage3_prefetch_bucket_size)
        chosen: dict[Tensor, None] = {}
        elements = 0
        while self.queue and elements < room:
            weight, visit = self.queue.popleft()
            self.fetched_for[weight] = max(self.fetched_for.get(weight, NEVER), visit)
            if self.missing(weight) and weight not in chosen:
                chosen[weight] = None
                elements += int(weight.numel)
        self.gather(list(chosen))

    def release(self, module: Module, *, forward: bool) -> None:
        """The module has run."""
        ending = self.ending(module)
        if not forward:
            self.backward_modules.pop(module, None)
        for weight in module.weights:
            self.users[weight].discard(module)
            if weight in ending:
                self.free(weight)

    def ending(self, module: Module) -> set[Tensor]:
        """What ends with this module here: decided once, and remembered."""
        key = module, self.visit
        if key not in self.let_go:
            self.let_go[key] = self.not_needed_soon(module)
        return self.let_go[key]

    def not_needed_soon(self, module: Module) -> set[Tensor]:
        ending = {weight for weight in module.weights if weight not in self.persistent
                  and self.fetched_for.get(weight, NEVER) <= self.visit}
        passed = 0
        for later in islice(self.visits, self.visit, None):
            if passed >= self.options.stage3_max_reuse_distance or not ending:
                break
            ending.difference_update(later.weights)
            passed += sum(int(weight.numel) for weight in later.weights)
        return ending

    def free(self, weight: Tensor) -> None:
        if weight in self.available and not self.users[weight]:
            self.available.discard(weight)
            self.live_elements -= int(weight.numel)
            self.storage.free(weight)

    def end_backward(self) -> None:
        """Modules whose backward had no end, as an embedding's."""
        while self.backward_modules:
            module, _ = self.backward_modules.popitem()
            for weight in module.weights:
                self.users[weight].discard(module)
                if weight not in self.persistent:
                    self.free(weight)

    def free_all(self) -> None:
        """Before the update nothing is gathered."""
        for weight in self.place:
            self.users[weight].clear()
            self.free(weight)

    def gather_persistent(self) -> None:
        """After the update the persistent parameters are there again."""
        self.available |= self.persistent
