"""Between backward and the optimizer: the loss scaler's checks, and clipping by the norm of all gradients."""
from __future__ import annotations

from collections.abc import Sequence

from gpuledger.program.sizes import Size, ceil_div, uniformly
from gpuledger.program.tensor import Move, Tensor

from .update_rules import Moves

NORM_CHUNK = 65_536          # elements of a tensor that one block of torch._foreach_norm reads


def scalar(name: str, dtype: str = "float32") -> Tensor:
    return Tensor(name, (), dtype, "scratch")


class LossScaler:
    """torch.amp.GradScaler's tensors, all on the GPU. Ref: torch/amp/grad_scaler.py. [O14]

    fused: the optimizer unscales in its own kernel. axes: of the mesh, over which ranks agree on
    found_inf (DTensor).
    """

    def __init__(self, fused: bool, axes: int = 0):
        self.fused = fused
        self.axes = axes
        self.found_inf = scalar("found_inf")
        self.unscaled = False

    @staticmethod
    def state() -> tuple[Tensor, Tensor]:
        """The scale and the count of steps since it grew: made when the first loss is scaled."""
        return scalar("loss scale"), scalar("growth tracker", "int32")

    def unscale(self) -> Moves:
        """The inverse scale through fp64, and copies of it and of found_inf for the device."""
        double, inverse = scalar("scale", "float64"), scalar("1 / scale", "float64")
        yield from (+double, +inverse, -double)
        single = scalar("1 / scale")
        yield from (+single, -inverse)
        yield from self.check(single)

    def check(self, inverse: Tensor) -> Moves:
        """Looks for inf; one copy of found_inf stays until `update`."""
        zero, copy = scalar("found_inf of all"), scalar("1 / scale of the device")
        yield from (+zero, +self.found_inf, +copy)
        reduced = [scalar("found_inf of all ranks") for _ in range(self.axes)]
        yield from (*(+number for number in reduced), *(-number for number in reduced))
        yield from (-copy, -inverse, -zero)
        self.unscaled = True

    def before_step(self) -> Moves:
        """What stays through the optimizer's step is freed by `after_step`."""
        if not self.fused:
            if not self.unscaled:
                yield from self.unscale()
            return
        self.sums = [scalar("sum of found_inf")]
        if not self.unscaled:
            one = scalar("1")
            yield +one
            yield from self.check(one)
            self.sums.append(scalar("scale * 1"))
        yield from (+total for total in self.sums)

    def after_step(self) -> Moves:
        if self.fused:
            yield from (-total for total in self.sums)
        yield -self.found_inf
        self.unscaled = False


def clip(gradients: Sequence[Tensor]) -> Moves:
    """clip_grad_norm_: a norm per tensor, their stack, its norm, and the coefficient. [O15]

    Ref: torch/nn/utils/clip_grad.py.
    """
    dtype, count = gradients[0].dtype, len(gradients)
    moves, norms = foreach_norm(gradients)
    stack, total = Tensor("stack of norms", (count,), dtype, "scratch"), scalar("total norm", dtype)
    yield from (*moves, +stack, +total, -stack)
    yield from (-norm for norm in norms)
    yield from coefficient(total)


def foreach_norm(gradients: Sequence[Tensor]) -> tuple[list[Move], list[Tensor]]:
    """torch._foreach_norm: its moves, and the norms that stay.

    Chunks of 65,536 elements are summed into fp32, as many per tensor as the largest tensor needs.
    An empty tensor gets a zero in place of its norm. Ref: ATen/native/cuda/ForeachReduceOp.cu.
    """
    dtype, count = gradients[0].dtype, len(gradients)
    chunks: Size = max(ceil_div(gradient.numel, NORM_CHUNK) for gradient in gradients)
    table = Tensor("norms of chunks", (count, chunks), "float32", "scratch")
    norms = [scalar("norm", dtype) for _ in gradients]
    zeros = [scalar("norm of nothing", dtype) for gradient in gradients
             if uniformly(gradient.numel == 0)]
    unused = norms[count - len(zeros):]
    moves = [+table, *(+norm for norm in norms), *(+zero for zero in zeros), -table,
             *(-norm for norm in unused)]
    return moves, norms[:count - len(zeros)] + zeros


def coefficient(total: Tensor) -> Moves:
    """By which gradients are multiplied: clamped max_norm / (total + eps). Frees the total norm."""
    shifted, inverse, factor, clamped = (
        scalar(name, total.dtype)
        for name in ("norm + eps", "1 / norm", "coefficient", "clamped coefficient"))
    yield from (+shifted, +inverse, +factor, -inverse, -shifted, +clamped,
                -factor, -clamped, -total)
