"""torch.nn.DataParallel: one process, a replica on each GPU, and everything through the first. [J1]-[J3]

The account is the first GPU's, which holds the model's only lasting copy, the whole batch, what is gathered
and the sums of all gradients. Ref: torch/nn/parallel/{data_parallel,replicate,_functions,comm}.py,
torch/csrc/cuda/comm.cpp, PyTorch 2.14.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.errors import Problem
from gpuledger.program.model import Program
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor

from ..group_timeline import GroupTimeline
from ..policy import Kept, Policy
from ..step import batch

# c10/core/ScalarType.h, in order: the dtypes of parameters and tables
SCALAR_TYPES = ("uint8", "int32", "int64", "float16", "float32", "float64", "bool", "bfloat16")
BUFFER_BYTES = 10 * 2**20            # torch/nn/parallel/comm.py, comm.cpp: tensors copied at a time


@dataclass(frozen=True)
class DataParallel(Policy):
    """The first of `replicas` GPUs."""

    replicas: int

    equation = "J1"

    @property
    def walks_layers_once(self) -> bool:
        """Copies of 10 MiB span layers."""
        return False

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> DataParallelTimeline:
        return DataParallelTimeline(program, self, workspaces)

    def kept(self, weights: Sequence[Tensor], training: Training) -> list[Kept]:
        """The batch of the other replicas, from which theirs is copied. [J1]"""
        if self.replicas == 1:
            return []
        others = tuple(Tensor(t.name, ((self.replicas - 1) * t.shape[0], *t.shape[1:]), t.dtype, "table")
                       for t in batch(training))
        return [Kept("buffers", "batch of the other GPUs", others, "J1", f"{self.replicas - 1} replicas")]


def taken(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors of one dtype together, until they reach 10 MiB; what is left goes by dtype. [J2]

    Ref: torch/csrc/utils/tensor_flatten.cpp take_tensors.
    """
    chunks: list[list[Tensor]] = []
    kinds: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        together = kinds.setdefault(tensor.dtype, [])
        together.append(tensor)
        if sum(t.nbytes for t in together) >= BUFFER_BYTES:
            chunks.append(list(together))
            together.clear()
    rest = sorted(kinds, key=SCALAR_TYPES.index)
    return [*chunks, *(kinds[dtype] for dtype in rest if kinds[dtype])]


def taken_whole(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """As many tensors as 10 MiB hold, or one that is larger. [J3]

    Ref: torch/_utils.py _take_tensors.
    """
    chunks: list[list[Tensor]] = [[]]
    filled: Size = 0
    for tensor in tensors:
        if filled + tensor.nbytes > BUFFER_BYTES and filled > 0:
            chunks.append([])
            filled = 0
        chunks[-1].append(tensor)
        filled = filled + tensor.nbytes
    return chunks


class DataParallelTimeline(GroupTimeline):
    """A call of the first GPU.

    broadcast  a flat copy of each chunk of parameters and tables, one at a time. [J2]
    outputs    those of all replicas, gathered. [J1]
    reduction  the replica's gradients stay until all are there; then chunk by chunk they are flattened
               and summed, and the sums are the gradients. [J3]
    """

    def __init__(self, program: Program, policy: DataParallel, workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.replicas = policy.replicas
        self.replica_grads: dict[Tensor, int] = {}

    def before_forward(self) -> None:
        if self.replicas > 1:
            self.memory.equation = "J2"
            for chunk in (*taken(self.program.weights), *taken(self.program.tape.tables)):
                if len(chunk) > 1:
                    self.memory.drop(self.memory.allocate(flat(chunk, "broadcast"), "buffers"))

    def end_forward(self) -> None:
        """The replica's outputs go once they are gathered; the losses of all become their mean."""
        super().end_forward()
        memory = self.memory
        outputs = [t for t in (self.program.loss, self.program.logits) if t is not None]
        if self.replicas == 1:
            return
        memory.equation = "J1"
        for output in outputs:
            shape = (self.replicas * (output.shape[0] if output.shape else 1), *output.shape[1:])
            number = memory.allocate(Tensor(f"gathered {output.name}", shape, output.dtype), "buffers")
            memory.drop_tensor(output)
            memory.current[output.storage] = number

    def store(self, parameter: Tensor, number: int) -> None:
        if self.replicas == 1:
            super().store(parameter, number)
            return
        self.replica_grads[parameter] = number
        self.memory.categories[number] = "gradients"

    def end_backward(self) -> None:
        """Each chunk's flat copy lives until the next one's is there. [J3]"""
        super().end_backward()
        if self.replicas == 1:
            return
        memory = self.memory
        held: list[int] = []
        memory.layer, memory.equation = None, "J3"
        sums = []
        for chunk in self.gradient_chunks():
            copies = ([memory.allocate(flat(chunk, "flattened gradients"), "buffers")]
                      if len(chunk) > 1 else [])
            memory.drop(*held)
            held = copies
            sums.append((chunk[0], memory.allocate(flat(chunk, "summed gradients"), "gradients")))
        memory.drop(*held, *self.replica_grads.values())
        self.replica_grads = {}
        for weight, number in sums:
            if self.grads.setdefault(weight, number) != number:      # added to earlier ones
                memory.drop(number)

    def gradient_chunks(self) -> list[list[Tensor]]:
        return taken_whole(self.program.weights)

    def earlier_gradients(self, *, kept: bool, only: set[Tensor] | None = None) -> None:
        """Those of a chunk share a storage."""
        if self.replicas == 1:
            super().earlier_gradients(kept=kept, only=only)
            return
        for chunk in self.gradient_chunks():
            if chunk[0] not in self.grads:
                self.grads[chunk[0]] = self.memory.allocate(flat(chunk, "summed gradients"), "gradients")


def flat(chunk: Sequence[Tensor], name: str) -> Tensor:
    elements: Size = sum(tensor.numel for tensor in chunk)
    return Tensor(name, (elements,), chunk[0].dtype)


def unmodelled_data_parallel(run: Run) -> Iterator[Problem]:
    """Replicas' weights are no leaves, so autocast casts them at each use; one process has one node."""
    training, parallel, cluster = run.training, run.parallel, run.cluster
    if parallel.dp > cluster.gpus_per_node:
        yield Problem(f"DataParallel is one process on one node, but dp = {parallel.dp} and a node has "
                      f"{cluster.gpus_per_node} GPUs", "use framework: ddp")
    if training.optimizer in ("adafactor", "muon"):
        yield Problem(f"optimizer {training.optimizer} in DataParallel is not modelled: its products take a "
                      "cuBLAS workspace of their own", "use adamw, adam, sgd or lion")
    if training.recompute == "per_op":
        yield Problem("recompute: per_op in DataParallel: PyTorch counts the operators of all replicas together",
                      "use recompute: full, or framework: ddp")
    precision = PRECISIONS[training.precision]
    if precision.autocast:
        yield Problem(f"precision {training.precision} in DataParallel is not modelled",
                      "use precision: bf16 or fp32, or framework: ddp")
