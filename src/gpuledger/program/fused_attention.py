"""FlashAttention-2, the memory-efficient kernel and cuDNN's: one operator each, no scores in
memory."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuledger.errors import InputError

from . import kernels, views
from . import operators as op
from .efficient_kernels import tiles_of_backward, wide_output
from .layout import Strides, elementwise, transposed
from .masks import bias_of_mask, padded_bias
from .program import Moves, Op, Tape
from .sizes import Size, round_up, uniformly
from .tensor import ITEMSIZE, Tensor, scratch

if TYPE_CHECKING:
    from .attention_kernels import Core

FLASH_HEAD_DIM_MULTIPLE = 8
Heads = tuple[Tensor, ...]                  # query, key, value: (b, a, s, d); perhaps a bias


def fused(tape: Tape, settings: Core, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(b, a, s, d) x3 -> (b, a, s, d). Keeps Q, K, V, the output and logsumexp (b, a, s). [S11]
    [F22]"""
    inputs = cast_inputs(tape, settings, query, key, value)
    if settings.kernel == "flash":
        return padded_flash(tape, settings, inputs)
    if settings.kernel == "cudnn":
        return cudnn(tape, settings, *inputs)
    require_alignment(inputs[0])
    with tape.part("efficient attention", *inputs):
        return efficient(tape, settings, inputs, kernel_bias(tape, settings, inputs[0]))


def cast_inputs(tape: Tape, settings: Core, *inputs: Tensor) -> Heads:
    """By autocast, the last one first; FlashAttention with a window is called past autocast, which
    the model makes up for, the first one first."""
    if settings.kernel == "flash" and settings.window is not None:
        query, key, value = (op.cast(tape, t, tape.precision.compute_dtype) for t in inputs)
        tape.hold(query, key, value)
        return query, key, value
    cast_query, cast_key, cast_value = op.autocast(tape, *inputs)
    assert cast_query is not None and cast_key is not None and cast_value is not None
    return cast_query, cast_key, cast_value


def require_alignment(query: Tensor) -> None:
    """Raises InputError for a head_dim that the memory-efficient kernel cannot read in pieces of 16
    bytes."""
    multiple, d = 16 // ITEMSIZE[query.dtype], query.shape[-1]
    if not uniformly(d % multiple == 0):
        raise InputError(
            f"attention: efficient needs head_dim in multiples of {multiple} for "
            f"{query.dtype}, not {d}",
            "use attention: flash (which pads), math or eager",
        )


def require_backward(d: Size, dropout: bool, tape: Tape) -> None:
    """Raises InputError for a head_dim that FlashAttention-2 has no backward kernel for.

    Ref: ATen/native/transformers/cuda/sdp_utils.cpp (head_dim above 192 on the smaller
    multiprocessors).
    """
    small = (
        tape.device.small_shared_memory and uniformly(d > 192) and (dropout or uniformly(d <= 224))
    )
    if small or uniformly(d > 256):
        capability = ".".join(map(str, tape.device.capability))
        raise InputError(
            f"attention: flash has no backward kernel for head_dim {d} at compute capability "
            f"{capability}{' with attention dropout' if dropout else ''}",
            "use attention: efficient, math or eager",
        )


def padded_flash(tape: Tape, settings: Core, inputs: Heads) -> Tensor:
    """scaled_dot_product_attention pads head_dim to a multiple of 8 and slices the output."""
    d = inputs[0].shape[-1]
    require_backward(d, settings.dropout, tape)
    width = round_up(d, FLASH_HEAD_DIM_MULTIPLE)
    if width is d or uniformly(width == d):
        return flash(tape, settings, *inputs)
    with tape.part("padded flash", *inputs):
        padded = [views.pad_last(tape, f"{t.name} padded", t, width) for t in inputs]
        tape.hold(*padded)
        return views.slice_last(tape, "attention", flash(tape, settings, *padded), 0, d)


def kernel_bias(tape: Tape, settings: Core, query: Tensor) -> Tensor | None:
    """The bias (s, s) of a window, or ALiBi's (a, s, s), in the query's dtype and aligned for the
    kernel."""
    _, a, s, _ = query.shape
    if not settings.masked:
        return None
    bias = Tensor("alibi", (a, s, s), query.dtype, "table")
    if settings.window is not None:
        bias = bias_of_mask(tape, s, query.dtype)
    aligned = padded_bias(tape, bias)
    tape.hold(aligned)
    return aligned


def heads_inside(x: Tensor, name: str) -> Tensor:
    """A new (b, a, s, d) tensor that lies in memory as (b, s, a, d), as these kernels write it."""
    b, a, s, d = x.shape
    return Tensor(name, x.shape, x.dtype, strides=transposed((b, s, a, d), None, 1, 2)[1])


def same_layout(x: Tensor, name: str) -> Tensor:
    """at::empty_like of (b, s, a, d): dense, in memory as x."""
    shape, strides = transposed(x.shape, x.strides, 1, 2)
    return Tensor(name, x.shape, x.dtype,
                  strides=transposed(shape, elementwise(shape, strides), 1, 2)[1])


def attention_flops(query: Tensor) -> Size:
    """Q K^T and P V over all s x s pairs: what the kernels' callers count; masked blocks are
    skipped."""
    b, a, s, d = query.shape
    return 4 * b * a * s * s * d


def attention_op(settings: Core, inputs: Heads, outputs: tuple[Tensor, ...], gradients: Heads,
                 **moves: Any) -> Op:
    """The node common to the three kernels. Backward forms S again: 2.5 times the forward products.
    """
    query, key, value, *bias = inputs
    flops = attention_flops(query)
    y, logsumexp, *random_state = outputs
    return Op(settings.kernel, inputs, outputs,
              saves=(*bias, key, query, value, logsumexp, y, *random_state),
              gradients=dict(zip(inputs, gradients, strict=False)),
              flops=flops, backward_flops=flops * 5 // 2, dispatched="attention", equation="S11",
              **moves)


def flash(tape: Tape, settings: Core, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlashAttention-2: one node."""
    outputs, forward = flash_forward(tape, settings, query, key)
    gradients = tuple(same_layout(t, f"d({t.name})") for t in (query, key, value))

    def backward(strides: Strides) -> Moves:
        return flash_backward(outputs[0], strides, gradients)

    return tape.append(attention_op(settings, (query, key, value), outputs, gradients,
                                    forward=forward, backward=backward))


def flash_forward(tape: Tape, settings: Core, query: Tensor,
                  key: Tensor) -> tuple[tuple[Tensor, ...], Moves]:
    """Output, logsumexp and random state of one call, and its moves.

    Random state: 16 bytes kept (and 8 unused), a seed beside them with dropout. The output lies in
    memory as the queries do.
    """
    b, a, s, _ = query.shape
    y, logsumexp = same_layout(query, "attention"), Tensor("logsumexp", (b, a, s), "float32")
    state, unused = scratch("rng state", 16), scratch("rng unused", 8)
    if settings.dropout:
        seed = scratch("rng seed", 16)
        return (y, logsumexp, state, unused), (+y, +logsumexp, +seed, +unused, +state, -seed)
    per_split = kernels.flash_forward(query, key, tape.device)
    return (y, logsumexp, state, unused), (
        +y, +logsumexp, *(+t for t in per_split), +state, +unused, *(-t for t in per_split))


def flash_backward(y: Tensor, strides: Strides, gradients: Heads) -> Moves:
    """Of an output y and its gradient, which lies as `strides` say.

    Backward reads contiguous (b, s, a, d) tensors, and copies what is not. Ref:
    _flash_attention_backward (ATen/native/transformers/cuda).
    """
    dot, accumulator = kernels.flash_backward(*y.shape)
    copy_dy, copy_y = y.like("d(attention) copy"), y.like("attention copy")
    copies = [copy for copy, lies in ((copy_dy, strides), (copy_y, y.strides))
              if transposed(y.shape, lies, 1, 2)[1] is not None]
    return (*(+copy for copy in copies), *(+t for t in gradients), +dot, +accumulator,
            -accumulator, -dot, *(-copy for copy in copies))


def efficient(tape: Tape, settings: Core, inputs: Heads, bias: Tensor | None) -> Tensor:
    """The memory-efficient kernel: one node. A bias is kept."""
    query, key, _ = inputs
    outputs, forward = efficient_forward(settings, query)
    gradients = tuple(heads_inside(t, f"d({t.name})") for t in inputs)
    with_bias = inputs if bias is None else (*inputs, bias)

    def backward(strides: Strides) -> Moves:
        return efficient_backward(tape, settings, (query, key), strides, gradients)

    return tape.append(attention_op(settings, with_bias, outputs, gradients, forward=forward,
                                    backward=backward))


def efficient_forward(settings: Core, query: Tensor) -> tuple[tuple[Tensor, ...], Moves]:
    """Output, logsumexp and random state of one call, and its moves.

    logsumexp is padded to 32 queries; with dropout the random state stays on the CPU.
    """
    b, a, s, _ = query.shape
    y = heads_inside(query, "attention")
    logsumexp = Tensor("logsumexp", (b, a, round_up(s, 32)), "float32")
    wide = wide_output(query)
    if settings.dropout:
        return (y, logsumexp), (+y, +logsumexp, +wide, -wide)
    seed, offset = scratch("seed", 8), scratch("offset", 8)
    return (y, logsumexp, offset, seed), (+seed, +offset, +y, +logsumexp, +wide, -wide)


def efficient_backward(tape: Tape, settings: Core, heads: Heads, strides: Strides,
                       gradients: Heads) -> Moves:
    """Of query and key; the output's gradient, which lies as `strides` say, is copied where it is
    not contiguous as (b, s, a, d)."""
    query, key = heads
    copy = query.like("d(attention) copy")
    copies = () if transposed(query.shape, strides, 1, 2)[1] is None else (copy,)
    return (*(+t for t in copies), *(+t for t in gradients),
            *efficient_scratch(tape, settings, query, key), *(-t for t in copies))


def efficient_scratch(tape: Tape, settings: Core, query: Tensor, key: Tensor) -> Moves:
    """delta = sum(dO * O) per query: one kernel in 16 bit, three PyTorch operators in fp32."""
    b, a, s, _ = query.shape
    delta = Tensor("delta", (b, a, s), "float32", "scratch")
    tiles = tiles_of_backward(query, key, settings.dropout, tape.device)
    if query.dtype != "float32":
        return +delta, +tiles, -delta, -tiles
    weighted, strided = query.like("dO * O"), delta.like("delta strided")
    if transposed((b, s, a), None, 1, 2)[1] is None:     # one head: the sum is delta already
        return +weighted, +delta, -weighted, +tiles, -delta, -tiles
    return +weighted, +strided, +delta, -strided, -weighted, +tiles, -delta, -tiles


def cudnn(tape: Tape, settings: Core, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """cuDNN's kernel: what autograd keeps is known (FakeTensor), its workspace is not (no entry).
    """
    b, a, s, _ = query.shape
    y, logsumexp = heads_inside(query, "attention"), Tensor("logsumexp", (b, a, s, 1), "float32")
    seed, offset = scratch("seed", 8), scratch("offset", 8)
    dq, dk, dv = (heads_inside(t, f"d({t.name})") for t in (query, key, value))
    return tape.append(attention_op(settings, (query, key, value), (y, logsumexp, seed, offset),
                                    (dq, dk, dv), forward=(+y, +logsumexp, +seed, +offset),
                                    backward=(+dq, +dk, +dv)))
