"""The tensors of ring attention: buffers that are sent, merged outputs, views of halves."""
from __future__ import annotations

from .frame import Frame
from .layout import dense_strides, elementwise, normal
from .local import Local
from .program import Moves
from .sizes import Size, uniformly
from .tensor import Move, Tensor


class Rotater:
    """_AllToAllRotater (a ring), or _AllGatherRotater, which communicates once."""

    def __init__(self, frame: Frame, name: str, local: Local, *, ring: bool = False):
        self.frame, self.name, self.cp = frame, f"{name} rotater", local.cp
        self.ring = ring or local.cp_exchange == "ring"

    def exchange(self, sent: Tensor) -> None:
        if self.ring:
            self.frame.bind(**{self.name: self.frame.make(sent.like(f"received {sent.name}"))})
        elif self.name not in self.frame.bound:
            gathered = Tensor("gathered keys, values", (self.cp * sent.numel,), sent.dtype)
            self.frame.bind(**{self.name: self.frame.make(gathered)})

    def next_buffer(self) -> Tensor:
        return self.frame[self.name]


def signature(x: Tensor) -> tuple[object, ...]:
    """What tells tensors apart that are not one; columns of sizes are the same if they are one object."""
    return x.name, x.shape, x.dtype, x.role, x.strides


def numbered(name: str, tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Names for the items of a list."""
    return {f"{name} {i}": tensor for i, tensor in enumerate(tensors)}


def contiguous(frame: Frame, x: Tensor) -> Tensor:
    """x.contiguous()."""
    return x if x.strides is None else frame.make(Tensor(f"{x.name} contiguous", x.shape, x.dtype))


def joined(key: Tensor) -> Tensor:
    """Keys and values of a rank in one flat tensor, in their dtype."""
    return Tensor("keys, values", (2 * key.numel,), key.dtype)


def received(buffer: Tensor, like: Tensor) -> Tensor:
    """A block's keys or values in the buffer."""
    return buffer.view(f"{like.name} of another rank", like.shape)


def half(x: Tensor) -> Tensor:
    """x.chunk(2, dim=2)[...]: a view of one half of the tokens."""
    shape = (*x.shape[:2], x.shape[2] // 2, *x.shape[3:])
    strides = dense_strides(x.shape) if x.strides is None else x.strides
    return x.view(f"half of {x.name}", shape, normal(shape, strides))


def wide(frame: Frame, x: Tensor) -> Tensor:
    """x.to(torch.float32)."""
    if x.dtype == "float32":
        return x
    return frame.make(x.like(f"{x.name} fp32", "float32", strides=x.strides))


def zeros(frame: Frame, x: Tensor) -> Tensor:
    """zeros_like(x, dtype=float32): dense, in the order of x."""
    return frame.make(Tensor(f"d({x.name}) fp32", x.shape, "float32",
                             strides=elementwise(x.shape, x.strides)))


def merged_output(frame: Frame, old: Tensor, block: Tensor, per_query: tuple[Size, ...]) -> Tensor:
    """out - sigmoid(block_lse - lse) * (out - block_out)."""
    difference = frame.make(Tensor("block lse - lse", per_query, "float32"))
    share = frame.make(Tensor("sigmoid", per_query, "float32"))
    frame.discard(difference)
    change = frame.make(block.like("out - block out"))
    product = frame.make(block.like("change"))
    frame.discard(share, change)
    strides = elementwise(old.shape, old.strides)
    result = frame.make(Tensor("merged output", old.shape, "float32", strides=strides))
    frame.discard(product)
    return result


def merged_logsumexp(frame: Frame, shape: tuple[Size, ...]) -> Tensor:
    """lse - logsigmoid(lse - block_lse)."""
    difference = frame.make(Tensor("lse - block lse", shape, "float32"))
    logarithm = frame.make(Tensor("logsigmoid", shape, "float32"))
    frame.discard(difference)
    result = frame.make(Tensor("merged logsumexp", shape, "float32"))
    frame.discard(logarithm)
    return result


def halved_logsumexp(frame: Frame, query: Tensor) -> Tensor:
    """logsumexp.chunk(2, dim=2)[1].contiguous(): a copy, unless there is one head of one sequence."""
    b, a, s, _ = query.shape
    one = uniformly(b * a == 1)
    part = Tensor("half of logsumexp", (b, a, s // 2), "float32")
    return part if one else frame.make(part)


def renamed(frame: Frame, results: dict[Tensor, Tensor]) -> Moves:
    """The moves with these storages called as the node's results are."""
    return tuple(Move(results.get(move.tensor, move.tensor), move.sign)
                 for move in frame.finish(*results))
