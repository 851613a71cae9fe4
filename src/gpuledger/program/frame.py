"""The named locals of a Python function, and the ledger that they write."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .program import Moves
from .tensor import Move, Tensor


@dataclass(frozen=True)
class Script:
    """The moves of a call, and the tensors that outlive it."""

    moves: Moves
    results: tuple[Tensor, ...]

    def with_results(self, *results: Tensor) -> Moves:
        """The moves of another call with the same sizes. Its temporaries are these tensors again: those
        of one call are gone before the next one begins."""
        renamed = dict(zip(self.results, results, strict=True))
        return tuple(Move(renamed[move.tensor], move.sign) if move.tensor in renamed else move
                     for move in self.moves)


class Frame:
    """A storage made here lives while a name is bound to it, or to a view of it.

    Storages that come from outside are not counted: the caller holds them.
    """

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self.bound: dict[str, Tensor] = {}
        self.holders: Counter[Tensor] = Counter()
        self.mine: set[Tensor] = set()

    def __getitem__(self, name: str) -> Tensor:
        return self.bound[name]

    def make(self, tensor: Tensor) -> Tensor:
        """Allocate; it lives until it is bound and let go, or discarded."""
        self.moves.append(+tensor)
        self.mine.add(tensor)
        return tensor

    def play(self, moves: Moves, made: Iterable[Tensor]) -> None:
        """What a kernel does; `made` is what it returns."""
        self.moves.extend(moves)
        self.mine.update(made)

    def bind(self, **named: Tensor) -> None:
        """`a, b = ...`: the new values are held before the old ones are let go."""
        for tensor in named.values():
            self.holders[tensor.storage] += 1
        old = [self.bound[name] for name in named if name in self.bound]
        self.bound.update(named)
        for tensor in old:
            self._let_go(tensor)

    def unbind(self, *names: str) -> None:
        """`del`, a name bound to None, or a function that returns."""
        for name in names:
            if name in self.bound:
                self._let_go(self.bound.pop(name))

    def discard(self, *temporaries: Tensor) -> None:
        """Values of an expression that nothing holds."""
        for tensor in temporaries:
            self._free_unheld(tensor.storage)

    def finish(self, *results: Tensor) -> Moves:
        """Return: every name goes, the results stay. All moves, in order."""
        for tensor in results:
            self.holders[tensor.storage] += 1
        self.unbind(*tuple(self.bound))
        return tuple(self.moves)

    def _let_go(self, tensor: Tensor) -> None:
        self.holders[tensor.storage] -= 1
        self._free_unheld(tensor.storage)

    def _free_unheld(self, storage: Tensor) -> None:
        if storage in self.mine and not self.holders[storage]:
            self.mine.discard(storage)
            self.moves.append(-storage)
