"""Which storage lives, who holds it, and the ordered allocations and frees: the ledger of a step.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Move, Tensor

Event = tuple[int, int, Size]       # +1 or -1, number of the allocation, bytes

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")
ROLE_CATEGORY = {
    "parameter": "parameters",
    "gradient": "gradients",
    "scratch": "buffers",
    "activation": "activations",
    "weight_copy": "activations",
    "constant": "activations",
    "table": "buffers",
}


class Memory:
    """A storage is freed when its last holder lets go. `layer` tags the allocations of a decoder
    layer.

    streams: CUDA stream of each allocation that is not on the default one; the allocator gives a
    stream back only what was freed on it.
    once: allocations of a layer of which only one layer's are alive at a time, however deep the
    model is.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.sizes: list[Size] = []
        self.holders: list[int] = []
        self.tensors: list[Tensor] = []                  # by number of the allocation
        self.categories: list[str] = []
        self.layers: list[int | None] = []
        self.equations: list[str] = []                   # row of docs/formulas.md
        # storage -> number of its latest allocation
        self.current: dict[Tensor, int] = {}
        self.once: set[int] = set()
        self.streams: dict[int, int] = {}
        self.stream = 0
        self.layer: int | None = None
        self.equation = ""

    def allocate(self, tensor: Tensor, category: str | None = None) -> int:
        """A new storage, held once (by whoever asked). Returns its number."""
        number = len(self.sizes)
        nbytes = tensor.nbytes
        self.sizes.append(nbytes)
        self.events.append((1, number, nbytes))
        self.current[tensor.storage] = number
        self.holders.append(1)
        self.tensors.append(tensor)
        self.categories.append(category or ROLE_CATEGORY[tensor.role])
        self.layers.append(self.layer)
        self.equations.append(self.equation)
        if self.stream:
            self.streams[number] = self.stream
        return number

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """What is allocated inside belongs to this stream."""
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def number(self, tensor: Tensor) -> int | None:
        """None for what lives outside the step: parameters and tables."""
        return self.current.get(tensor.storage)

    def hold(self, number: int) -> int:
        self.holders[number] += 1
        return number

    def hold_all(self, tensors: Iterable[Tensor]) -> list[int]:
        """One more holder for each storage that lives in the step; their numbers."""
        current, holders = self.current, self.holders
        held = []
        for tensor in tensors:
            number = current.get(tensor.storage)
            if number is not None:
                holders[number] += 1
                held.append(number)
        return held

    def drop(self, *numbers: int) -> None:
        """One holder less for each; the last one frees the storage."""
        holders, events = self.holders, self.events
        for number in numbers:
            holders[number] -= 1
            if not holders[number]:
                events.append((-1, number, self.sizes[number]))

    def drop_tensor(self, tensor: Tensor) -> None:
        number = self.current.get(tensor.storage)
        if number is not None:
            self.drop(number)

    def live(self, end: int, begin: int = 0) -> list[int]:
        """Numbers of what events begin ... end - 1 allocate and do not free, oldest first."""
        numbers: dict[int, None] = {}
        for sign, number, _ in self.events[begin:end]:
            if sign > 0:
                numbers[number] = None
            else:
                del numbers[number]
        return list(numbers)

    def play(self, moves: Iterable[Move], category: str | None = None) -> None:
        """Run a script of moves; scratch of no bytes is not asked for."""
        for move in moves:
            tensor = move.tensor
            nbytes = tensor.nbytes
            if isinstance(nbytes, int) and nbytes == 0:
                continue
            if move.sign > 0:
                self.allocate(tensor, category)
            else:
                self.drop(self.current[tensor.storage])
