"""What a rank keeps between steps: parameters, masters, optimizer states, tables, workspaces."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuledger.config.model import Model
from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.errors import NotYetError
from gpuledger.program.device import Device
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.sizes import Size
from gpuledger.program.tables import tables
from gpuledger.program.tensor import ITEMSIZE, Tensor, scratch

from .allocator.sizes import MIN_BLOCK_BYTES
from .eight_bit import CODES
from .optimizer_states import optimizer_states
from .policy import Counted, Kept, Policy, Share
from .step import batch

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


def model_states(weights: Counted, training: Training, policy: Policy) -> list[State]:
    """Parameters, fp32 masters and optimizer states of this rank. [Z1] [O1]-[O6]

    Raises NotYetError for optimizers that need whole matrices where the policy divides them.
    """
    precision = PRECISIONS[training.precision]
    if policy.divides_matrices and training.optimizer in WHOLE_MATRIX_OPTIMIZERS:
        raise NotYetError(
            f"optimizer {training.optimizer} keeps states of whole matrices, and this run divides "
            "them over its ranks",
            "use zero_stage: 0, or optimizer: adamw")
    states = [_state("parameters", "parameters", policy.parameters(weights), policy.equation)]
    updated = policy.updated(weights)
    if precision.master_dtype is not None:
        updated = [replace(share, local=share.local.like(share.local.name, precision.master_dtype))
                   for share in updated]
        states.append(_state("optimizer", "fp32 master weights", updated, "O1"))
    kinds: dict[str, list[Share]] = {}
    for share in updated:
        for state in optimizer_states(share.local, training):
            kinds.setdefault(state.name, []).append(_share_of_state(state, share))
    states += [_state("optimizer", name, shares, "O1") for name, shares in kinds.items()]
    if "absmax1" in kinds:
        codes = [Share(Tensor("codes", (CODES,), "float32"), 2, CODES)]
        states.append(_state("optimizer", "8-bit code tables", codes, "O1"))
    return states


def _share_of_state(state: Tensor, share: Share) -> Share:
    """A state of the parameter's own shape is divided as the parameter is."""
    if state.shape == share.local.shape:
        return Share(state, share.count, share.whole_elements, share.padding_elements, share.over)
    return Share(state, share.count, state.numel)


def _state(category: str, name: str, shares: Sequence[Share], equation: str) -> State:
    nbytes = rounding = padding = elements = number = 0
    for share in shares:
        local, count = share.local, share.count
        nbytes += count * local.nbytes
        rounding += count * (-local.nbytes % MIN_BLOCK_BYTES)
        padding += count * share.padding_elements * ITEMSIZE[local.dtype]
        elements += count * share.whole_elements
        number += count
    dtype, over = (shares[0].local.dtype, shares[0].over) if shares else ("", "")
    return State(category, name, number, nbytes, padding, rounding, equation,
                 f"{elements:,} elements of {dtype}{over}")


def kept_states(kept: Iterable[Kept]) -> list[State]:
    """What a framework keeps through the whole step."""
    return [
        State(k.category, k.name, len(k.tensors), sum(t.nbytes for t in k.tensors), 0,
              sum(-t.nbytes % MIN_BLOCK_BYTES for t in k.tensors), k.equation, k.detail)
        for k in kept]


def constants_of(run: Run) -> tuple[Model, Training]:
    """Model and training as tables and batch of one rank see them: its heads, its part of a sequence."""
    model, training, parallel = run.model, run.training, run.parallel
    if parallel.tp > 1:
        model = model.model_copy(update={"num_heads": model.num_heads // parallel.tp})
    if parallel.cp > 1:
        training = training.model_copy(update={"seq_len": training.seq_len // parallel.cp})
    return model, training


def step_constants(model: Model, training: Training, device: Device) -> list[State]:
    """Tables, the batch, and cuBLAS's workspaces, one for each of two threads. [S14] [K6]"""
    workspaces = (scratch("workspace", device.cublas_workspace_bytes),) * 2
    return [*_named("tables", tables(model, training)), *_named("batch", batch(training)),
            *_named("cuBLAS workspaces", workspaces, "K6")]


def _named(name: str, tensors: Iterable[Tensor], equation: str = "S14") -> list[State]:
    listed = list(tensors)
    if not listed:
        return []
    detail = " + ".join(dict.fromkeys(f"{t.name} {tuple(t.shape)} {t.dtype}" for t in listed))
    rounding = sum(-t.nbytes % MIN_BLOCK_BYTES for t in listed)
    nbytes = sum(t.nbytes for t in listed)
    return [State("buffers", name, len(listed), nbytes, 0, rounding, equation, detail)]
