"""Named tensors of one rank: local shapes, after sharding."""
from __future__ import annotations

from .layout import Shape, Strides
from .sizes import Size, product

ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "bool": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "uint8": 1,
}


class Tensor:
    """A tensor, or a view of another tensor's storage. `+t` allocates it, `-t` frees it (see Move).

    shape in elements, local to the rank; strides None means contiguous.
    role     "activation"; "parameter" (outlives the step); "weight_copy" (a parameter cast for a
             product); "gradient" (of a parameter or its copy); "table" (constant, needs no
             gradient); "constant" (made in the step, needs no gradient); "scratch" (a kernel's own)
    dtensor  a DTensor: the engine adds up its gradients out of place
    replicated  a weight that DTensor does not divide: tensor-parallel ranks all have it whole
    """

    __slots__ = ("_nbytes", "dtensor", "dtype", "name", "replicated", "role", "shape", "storage",
                 "strides", "view_of")

    def __init__(self, name: str, shape: Shape, dtype: str, role: str = "activation", *,
                 strides: Strides = None, view_of: Tensor | None = None):
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.role = role
        self.strides = strides
        self.view_of = view_of
        self.storage: Tensor = self if view_of is None else view_of.storage
        self._nbytes: Size | None = None
        self.dtensor = self.replicated = False

    def __repr__(self) -> str:
        return f"Tensor({self.name}, {self.shape}, {self.dtype})"

    @property
    def parameter(self) -> bool:
        return self.role == "parameter"

    @property
    def needs_grad(self) -> bool:
        return self.role not in ("table", "constant")

    @property
    def numel(self) -> Size:
        return product(self.shape)

    @property
    def nbytes(self) -> Size:
        """Bytes of the elements; for a view this is not what its storage takes."""
        if self._nbytes is None:
            self._nbytes = product(self.shape) * ITEMSIZE[self.dtype]
        return self._nbytes

    def view(self, name: str, shape: Shape, strides: Strides = None) -> Tensor:
        """Another tensor on the same storage."""
        return Tensor(name, shape, self.dtype, self.role, strides=strides, view_of=self)

    def like(self, name: str, dtype: str | None = None, strides: Strides = None) -> Tensor:
        """A new tensor of the same shape."""
        return Tensor(name, self.shape, dtype or self.dtype, strides=strides)

    def gradient(self) -> Tensor:
        """A new contiguous tensor for d loss / d self."""
        role = "gradient" if self.role in ("parameter", "weight_copy") else "activation"
        return Tensor(f"d({self.name})", self.shape, self.dtype, role)

    def __pos__(self) -> Move:
        return Move(self, +1)

    def __neg__(self) -> Move:
        return Move(self, -1)


class Move:
    """One line of the ledger: this storage is allocated (+1) or freed (-1)."""

    __slots__ = ("sign", "tensor")

    def __init__(self, tensor: Tensor, sign: int):
        self.tensor = tensor
        self.sign = sign


def scratch(name: str, nbytes: Size) -> Tensor:
    """Memory that a kernel takes for itself."""
    return Tensor(name, (nbytes,), "uint8", "scratch")
