"""What stays allocated beside the states: workspaces, the global buffer, scalars. [M14]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuledger.config.megatron import MegatronOptions
from gpuledger.config.parallelism import Parallelism
from gpuledger.program.device import Device
from gpuledger.program.model import Program
from gpuledger.program.tensor import Tensor, scratch

from .states import Kept

ENGINE_WORKSPACE_BYTES = 4 * 2**20                       # Transformer Engine's GEMM workspace
ENGINE_WORKSPACE_BYTES_HOPPER = 32 * 2**20 + 1_024      # from capability 9.0 on
SCALARS, SCALARS_LOSS_SCALING, SCALARS_LOCAL = 7, 11, 6  # of one block each, see below
SCALARS_OF_A_STEP = 2  # of these: the loss and its sum, which the first step makes


def engine_workspace(options: MegatronOptions, device: Device) -> Tensor | None:
    """Transformer Engine's. Ref: TransformerEngine pytorch/cpp_extensions/gemm.py."""
    if options.transformer_impl != "transformer_engine":
        return None
    hopper = device.capability >= (9, 0)
    if options.engine_workspace_bytes is not None:
        return scratch("Transformer Engine workspace", options.engine_workspace_bytes)
    return scratch("Transformer Engine workspace",
                   ENGINE_WORKSPACE_BYTES_HOPPER if hopper else ENGINE_WORKSPACE_BYTES)


def cublas_workspaces(options: MegatronOptions, device: Device) -> tuple[Tensor, Tensor]:
    """One of the forward thread, one of autograd's."""
    nbytes = options.cublas_workspace_bytes or device.cublas_workspace_bytes
    forward, backward = (scratch(f"cuBLAS workspace ({thread})", nbytes)
                         for thread in ("forward", "backward"))
    return forward, backward


def scalars(options: MegatronOptions) -> tuple[Tensor, ...]:
    """Small tensors of the loss, the optimizer and the loss scaler, a block each.

    Their number was read off recorded runs and most of them identified: the scale of one, the optimizer's
    overflow buffer, the loss and its sum; fp16 adds scale, its minimum, growth and backoff and found_inf.
    """
    if options.params_dtype == "float16":
        count = SCALARS_LOSS_SCALING
    elif options.transformer_impl == "local" or options.old_transformer_engine:
        count = SCALARS_LOCAL
    else:
        count = SCALARS
    return tuple(Tensor("scalar", (1,), "float32", "scratch") for _ in range(count))


def kept_biases(options: MegatronOptions, weights: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Old Transformer Engine: its linears keep the bias they were made with when the distributed optimizer
    moves it into its buffer. Ref: TransformerEngine #719."""
    if not (options.old_transformer_engine and options.transformer_impl == "transformer_engine"):
        return ()
    return tuple(Tensor(f"unused {w.name}", w.shape, w.dtype) for w in weights
                 if w.name.startswith("linear_") and w.name.endswith(".bias"))


def largest_shared_buffer(programs: Iterable[Program]) -> int:
    """What the global buffer grows to."""
    sizes = [int(tensor.nbytes) for program in programs for op in program.root.ops()
             for tensor in op.reads if tensor.role == "shared_buffer"]
    return max(sizes, default=0)


def steady(options: MegatronOptions, device: Device, programs: list[Program],
           parallel: Parallelism) -> list[Kept]:
    """Everything that is there all the time from the second step on."""
    buffer = largest_shared_buffer(programs)
    takes_cublas = any(op.product for program in programs for op in program.root.ops())
    weights = [w for program in programs for w in program.weights]
    kept = [Kept("buffers", "scalars", scalars(options))]
    if takes_cublas:
        kept.append(Kept("buffers", "cuBLAS workspaces", cublas_workspaces(options, device)))
    workspace = engine_workspace(options, device)
    if workspace is not None:
        kept.append(Kept("buffers", "Transformer Engine workspace", (workspace,)))
    kept.append(Kept("buffers", "rotary tables", tuple(t for p in programs for t in p.tape.tables)))
    if buffer:
        kept.append(Kept("buffers", "global buffer", (scratch("mpu buffer", buffer),)))
    if parallel.zero_stage == 1:
        kept.append(Kept("buffers", "unused biases", kept_biases(options, weights)))
    if options.defer_embedding_wgrad_compute and options.keeps_deferred_gradient:
        last = tuple(w.gradient() for w in weights if w.name == "output_layer.weight")
        kept.append(Kept("gradients", "last gradient of the output layer", last))
    return [replace(k, equation="M14") for k in kept if k.tensors]
