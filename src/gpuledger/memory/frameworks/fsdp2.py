"""FSDP2 (`fully_shard` of every block and of the whole model): what a rank keeps. [W1] [W4]

A parameter is divided along dim 0 in chunks of ceil(d0 / N) rows, and padded: every rank stores that
many rows. Optimizer states cover only the rows that a rank owns.
Ref: torch/distributed/fsdp/_fully_shard/_fsdp_param.py (_init_sharded_param, reset_sharded_param).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpuledger.config.frameworks import FSDP2Options
from gpuledger.config.training import Training
from gpuledger.errors import Problem
from gpuledger.program.model import Program
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.sizes import Size, ceil_div, product
from gpuledger.program.tensor import Tensor

from ..gradients import clip
from ..optimizer_states import optimizer_states
from ..policy import Counted, Kept, Policy, Share
from ..update_rules import Moves
from . import dtensor
from .fsdp2_timeline import FSDP2Timeline


@dataclass(frozen=True)
class FSDP2(Policy):
    """One rank of `ranks` that share the parameters; rank 0 has most rows.

    reshard: parameters are freed after forward (but not the root's). tensor_parallel: the weights are a
    part that DTensor gave this rank, on the second axis of the mesh.
    """

    ranks: int
    reshard: bool = True
    options: FSDP2Options = field(default_factory=FSDP2Options)
    rank: int = 0
    tensor_parallel: bool = False

    equation = "W1"

    @property
    def divides_matrices(self) -> bool:
        return True

    @property
    def axes_of_found_inf(self) -> int:
        return (self.ranks > 1) + self.tensor_parallel

    @property
    def neighbours(self) -> int:
        return max(self.options.forward_prefetch, self.options.backward_prefetch or 1,
                   self.options.max_reduce_scatter_inputs)

    def computed(self, training: Training) -> Training:
        """With a param_dtype the model computes in it as if it were the weights' own."""
        if self.options.param_dtype is None:
            return training
        return training.model_copy(update={"precision": "bf16"})

    def rows(self, weight: Tensor) -> Size:
        """Rows that every rank stores of a weight."""
        return ceil_div(weight.shape[0], self.ranks)

    def owned_rows(self, weight: Tensor) -> Size:
        """Rows that this rank owns of it."""
        return max(0, min(weight.shape[0] - self.rank * self.rows(weight), self.rows(weight)))

    def stored_dtype(self, weight: Tensor) -> str:
        """The policy casts to the weight's dtype what is stored in fp32."""
        return "float32" if self.options.param_dtype else weight.dtype

    def reduce_dtype(self, weight: Tensor) -> str:
        return self.options.reduce_dtype or weight.dtype

    def owned(self, weight: Tensor) -> Tensor:
        """This rank's rows, in the dtype of the original parameter."""
        shape = (self.owned_rows(weight), *weight.shape[1:])
        owned = Tensor(weight.name, shape, self.stored_dtype(weight), weight.role)
        owned.replicated = weight.replicated
        return owned

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> FSDP2Timeline:
        return FSDP2Timeline(program, self, workspaces)

    def parameters(self, weights: Counted) -> list[Share]:
        return [] if self.options.cpu_offload else self._stored(weights)

    def _stored(self, weights: Counted) -> list[Share]:
        return [Share(Tensor(weight.name, (self.rows(weight), *weight.shape[1:]),
                             self.stored_dtype(weight), weight.role),
                      count, weight.numel, self.padding_elements(weight), f" / {self.ranks} ranks")
                for weight, count in weights]

    def padding_elements(self, weight: Tensor) -> Size:
        """By which the stored rows of all ranks exceed the weight."""
        return (self.ranks * self.rows(weight) - weight.shape[0]) * product(weight.shape[1:])

    def updated(self, weights: Counted) -> list[Share]:
        """States have no padding: all ranks' rows together are the weight's."""
        if self.options.cpu_offload:
            return []
        return [Share(self.owned(weight), count, weight.numel, 0, f" / {self.ranks} ranks")
                for weight, count in weights]

    def gradient(self, weight: Tensor) -> Tensor:
        return self.owned(weight)

    def clip(self, gradients: Sequence[Tensor]) -> Moves:
        if self.options.cpu_offload:
            return iter(())
        if self.tensor_parallel:
            axes = ("data", "tensor") if self.ranks > 1 else ("tensor",)
            return dtensor.clip_of_divided_layers(gradients, axes)
        return dtensor.clip(gradients) if self.ranks > 1 else clip(gradients)

    def host(self, weights: Counted, training: Training) -> list[Kept]:
        """CPUOffloadPolicy: parameters and gradients in pinned memory, states beside them. [W9]"""
        if not self.options.cpu_offload:
            return []
        stored = tuple(s.local for s in self._stored(weights) for _ in range(s.count))
        owned = [self.owned(weight) for weight, count in weights for _ in range(count)]
        states = tuple(s for weight in owned for s in optimizer_states(weight, training))
        return [Kept("parameters", "sharded parameters", stored, "W9", "pinned"),
                Kept("gradients", "sharded gradients", stored, "W9", "pinned"),
                Kept("optimizer", "optimizer states", states, "W9", "pageable")]


def unmodelled_fsdp2(training: Training, options: FSDP2Options) -> Iterator[Problem]:
    """Combinations that PyTorch has no operator for, or that have no account."""
    if training.optimizer in ("adamw-8bit", "adafactor", "muon"):
        yield Problem(f"optimizer {training.optimizer} on FSDP2's sharded tensors is not modelled",
                      "use adamw, adam, sgd or lion")
    if training.optimizer == "sgd" and training.optimizer_implementation == "fused":
        yield Problem("PyTorch has no fused SGD for FSDP2's sharded tensors",
                      "set optimizer_implementation: foreach")
    if options.cpu_offload and training.precision == "fp16-mixed":
        yield Problem("loss scaling of gradients on the host is not modelled",
                      "use precision: bf16-mixed")
    if options.param_dtype and training.precision != "bf16-mixed":
        yield Problem(f"fsdp2.param_dtype casts fp32 weights, but precision is {training.precision}",
                      "set precision: bf16-mixed")
    gradients = options.param_dtype or PRECISIONS[training.precision].weight_dtype
    if options.reduce_dtype == "bfloat16" and gradients != "bfloat16":
        yield Problem("reducing fp32 gradients in bfloat16 is not modelled",
                      "set fsdp2.param_dtype: bfloat16, or leave reduce_dtype out")
