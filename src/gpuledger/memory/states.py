"""What a rank keeps between steps: parameters, masters, optimizer states, tables, workspaces."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.errors import NotYetError
from gpuledger.program.device import Device
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.sizes import Size
from gpuledger.program.tensor import Tensor, scratch

from .eight_bit import CODES
from .optimizer_states import optimizer_states
from .step import batch, tables
from .zero import UNDIVIDED, Division

BLOCK_BYTES = 512                                    # the allocator's unit (c10: kMinBlockSize)
WHOLE_MATRIX_OPTIMIZERS = ("adafactor", "muon")      # their states do not follow from a flat part


@dataclass(frozen=True)
class State:
    """`count` tensors of one kind that live through the whole step."""

    category: str
    name: str
    count: int
    nbytes: Size
    padding_bytes: Size = 0
    rounding_bytes: Size = 0
    equation: str = ""
    detail: str = ""


Counted = Sequence[tuple[Tensor, int]]               # a tensor, and how many like it there are


def model_states(weights: Counted, training: Training, division: Division) -> list[State]:
    """Parameters, fp32 masters and optimizer states of this rank. [Z1] [O1]-[O6]

    Raises NotYetError for optimizers that need whole matrices where ZeRO divides them.
    """
    precision = PRECISIONS[training.precision]
    if division.divides(1) and training.optimizer in WHOLE_MATRIX_OPTIMIZERS:
        raise NotYetError(
            f"optimizer {training.optimizer} keeps states of whole matrices, and ZeRO stage "
            f"{division.stage} over {division.dp} ranks divides them",
            "use zero_stage: 0, or optimizer: adamw")
    states = [_state("parameters", "parameters", weights, division, 3)]
    updated = weights
    if precision.master_dtype is not None:
        updated = [(w.like(w.name, precision.master_dtype), count) for w, count in weights]
        states.append(_state("optimizer", "fp32 master weights", updated, division, 1))
    kinds: dict[str, list[tuple[Tensor, int]]] = {}
    for weight, count in updated:
        for state in optimizer_states(weight, training):
            kinds.setdefault(state.name, []).append((state, count))
    states += [_state("optimizer", name, tensors, division, 1) for name, tensors in kinds.items()]
    if "absmax1" in kinds:
        codes = [(Tensor("codes", (CODES,), "float32"), 2)]
        states.append(_state("optimizer", "8-bit code tables", codes, UNDIVIDED, 1))
    return states


def _state(category: str, name: str, tensors: Counted, division: Division, stage: int) -> State:
    nbytes = rounding = padding = elements = number = 0
    for tensor, count in tensors:
        part = division.part(tensor, stage).nbytes
        nbytes += count * part
        rounding += count * (-part % BLOCK_BYTES)
        padding += count * division.padding_bytes(tensor, stage)
        elements += count * tensor.numel
        number += count
    over = f" / {division.dp} ranks" if division.divides(stage) else ""
    return State(category, name, number, nbytes, padding, rounding,
                 "Z1" if category == "parameters" else "O1",
                 f"{elements:,} elements of {tensors[0][0].dtype}{over}")


def step_constants(model: Model, training: Training, device: Device) -> list[State]:
    """Tables, the batch, and cuBLAS's workspaces (one for each of the two threads of a step). [S14] [K6]"""
    return [*_named("tables", tables(model, training)), *_named("batch", batch(training)),
            *_named("cuBLAS workspaces", (scratch("workspace", device.cublas_workspace_bytes),) * 2,
                    "K6")]


def _named(name: str, tensors: Iterable[Tensor], equation: str = "S14") -> list[State]:
    listed = list(tensors)
    if not listed:
        return []
    detail = " + ".join(dict.fromkeys(f"{t.name} {tuple(t.shape)} {t.dtype}" for t in listed))
    rounding = sum(-t.nbytes % BLOCK_BYTES for t in listed)
    return [State("buffers", name, len(listed), sum(t.nbytes for t in listed), 0, rounding, equation,
                  detail)]
