"""Context parallelism as PyTorch writes it: every rank has two pieces of each sequence, and the
blocks of keys and values of all ranks pass by its queries.

The code below is PyTorch's own, name by name, for what its locals hold. Rank r has pieces r and
2 cp - 1 - r of 2 cp (load balancing), so of the block that comes from r - i it needs the first half
of the keys where i <= r, and all keys for the second half of its queries otherwise.
Ref: torch/distributed/tensor/experimental/_context_parallel/_attention.py.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .frame import Frame, Script
from .fused_attention import (
    attention_flops,
    cast_inputs,
    efficient_backward,
    efficient_forward,
    flash_backward,
    flash_forward,
    heads_inside,
    require_alignment,
    require_backward,
    same_layout,
)
from .layout import Strides
from .local import Local
from .program import Moves, Op, Tape
from .ring_tensors import (
    Rotater,
    contiguous,
    half,
    halved_logsumexp,
    joined,
    merged_logsumexp,
    merged_output,
    numbered,
    received,
    renamed,
    signature,
    wide,
    zeros,
)
from .tensor import Tensor

if TYPE_CHECKING:
    from .attention_kernels import Core



def ring_attention(tape: Tape, settings: Core, local: Local, heads: tuple[Tensor, ...]) -> Tensor:
    """(b, a, s / cp, d) x3 -> (b, a, s / cp, d). Keeps Q, K, V, the merged output and its
    logsumexp. [X19]

    Raises InputError for a head_dim that the kernel does not take.
    """
    query, key, value = cast_inputs(tape, settings, *heads)
    if settings.kernel == "flash":
        require_backward(query.shape[-1], False, tape)
    else:
        require_alignment(query)
    ring = Ring(tape, settings, local, query, key, value)
    y, logsumexp, random_state, forward = ring.forward_again()
    dq = query.like(f"d({query.name})", strides=ring.layout_of_gradient())
    flat = Tensor("d(key), d(value)", (2 * key.numel,), key.dtype)
    dk, dv = (flat.view(f"d({t.name})", t.shape) for t in (key, value))

    def backward(strides: Strides) -> Moves:
        return ring.backward_again(y, strides, dq, flat)

    flops = attention_flops(query) * local.cp
    return tape.append(Op(
        f"ring {settings.kernel}", (query, key, value), (y, logsumexp, *random_state),
        saves=(key, query, value, logsumexp, y, *random_state), forward=forward,
        backward=backward, gradients={query: dq, key: dk, value: dv}, shares=(flat,), flops=flops,
        backward_flops=flops * 5 // 2, dispatched="attention", equation="X19"))


@dataclass(frozen=True)
class Ring:
    """One layer's attention on one rank. query (b, a, s, d); key and value the same."""

    tape: Tape
    settings: Core
    local: Local
    query: Tensor
    key: Tensor
    value: Tensor

    # ---- like layers share one script, and so do the backward passes of one layer
    def forward_again(self) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Moves]:
        """`forward`, as a layer with the same sizes has done it."""
        scripts, key = self.tape.scripts, self.sizes
        if key not in scripts:
            y, logsumexp, state, moves = self.forward()
            scripts[key] = Script(moves, (y, logsumexp, *state))
            return y, logsumexp, state, moves
        script: Script = scripts[key]
        results = tuple(Tensor(t.name, t.shape, t.dtype, t.role, strides=t.strides)
                        for t in script.results)
        return results[0], results[1], results[2:], script.with_results(*results)

    def backward_again(self, y: Tensor, strides: Strides, dq: Tensor, flat: Tensor) -> Moves:
        """`backward`, as a layer with the same sizes has done it."""
        scripts, key = self.tape.scripts, (*self.sizes, signature(y), strides)
        if key not in scripts:
            scripts[key] = Script(self.backward(y, strides, dq, flat), (dq, flat))
        return scripts[key].with_results(dq, flat)       # type: ignore[no-any-return]

    @property
    def sizes(self) -> tuple[object, ...]:
        """All that the moves depend on."""
        return (self.settings, self.local, signature(self.query), signature(self.key),
                signature(self.value))

    # ---- forward: _templated_ring_attention
    def forward(self) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Moves]:
        """Output, logsumexp, random state, and all moves."""
        frame = Frame()
        state: tuple[Tensor, ...] = ()
        frame.bind(key=contiguous(frame, self.key))
        frame.bind(value=contiguous(frame, self.value))
        rotater = Rotater(frame, "kv", self.local)
        for i in range(self.local.cp):
            if i > 0:
                buffer = rotater.next_buffer()
                frame.bind(next_kv=buffer, key=received(buffer, self.key),
                           value=received(buffer, self.value))
            if i < self.local.cp - 1:
                frame.bind(next_kv=frame.make(joined(self.key)))
                rotater.exchange(frame["next_kv"])
                frame.unbind("next_kv")                  # exchange_buffers returns None
            query, key = self.block(i, frame["key"])
            frame.bind(k=key, v=frame["value"])
            outputs, moves = (flash_forward(self.tape, self.settings, query, key)
                              if self.settings.kernel == "flash"
                              else efficient_forward(self.settings, query))
            frame.play(moves, outputs)
            frame.bind(out=outputs[0], logsumexp=outputs[1], **numbered("rest", outputs[2:]))
            if i == 0:
                state = outputs[2:]
                frame.bind(**numbered("saved rest", state))
            self.merge(frame, i)
        y, logsumexp = self.merged(frame, outputs[0].dtype)
        return y, logsumexp, state, frame.finish(y, logsumexp, *state)

    def block(self, i: int, key: Tensor) -> tuple[Tensor, Tensor]:
        """The queries and keys that meet in round i."""
        if i == 0:
            return self.query, key
        return (self.query, half(key)) if self.early(i) else (half(self.query), key)

    def early(self, i: int) -> bool:
        """The block of round i comes from before this rank's first piece."""
        return i <= self.local.cp_rank

    def merge(self, frame: Frame, i: int) -> None:
        """_SDPAMerger.step and _merge_one, in fp32."""
        block, lse = wide(frame, frame["out"]), frame["logsumexp"]
        frame.bind(block_out=block, block_lse=lse)
        if i == 0:
            frame.bind(merged=block, merged_lse=lse)
            frame.unbind("block_out", "block_lse")
            return
        late = not self.early(i)
        old = half(frame["merged"]) if late else frame["merged"]
        per_query = (*lse.shape, 1)
        new = merged_output(frame, old, block, per_query)
        frame.bind(part=new)
        new_lse = merged_logsumexp(frame, lse.shape)
        frame.bind(part_lse=new_lse)
        if late:
            frame.bind(merged_lse=frame.make(frame["merged_lse"].like("merged logsumexp")))
            frame.bind(merged=frame.make(frame["merged"].like("merged output")))
        else:
            frame.bind(merged_lse=new_lse)
            frame.bind(merged=new)
        frame.unbind("block_out", "block_lse", "part", "part_lse")

    def merged(self, frame: Frame, dtype: str) -> tuple[Tensor, Tensor]:
        """_SDPAMerger.results: the output in its own dtype again."""
        y = frame["merged"]
        if y.dtype != dtype:
            y = frame.make(y.like("attention", dtype, strides=y.strides))
        return y, frame["merged_lse"]

    # ---- backward: _templated_ring_attention_backward
    def layout_of_gradient(self) -> Strides:
        """A concatenation is contiguous; otherwise it lies as the queries do."""
        ends_early = self.early(self.local.cp - 1)
        return same_layout(self.query, "").strides if ends_early else None

    def backward(self, y: Tensor, strides: Strides, dq: Tensor, flat: Tensor) -> Moves:
        """dq and flat, which holds d(key) and d(value), are what is left at the end."""
        frame = Frame()
        frame.bind(grad_query=zeros(frame, self.query))
        frame.bind(grad_key=zeros(frame, self.key))
        frame.bind(grad_value=zeros(frame, self.value))
        frame.bind(key=contiguous(frame, self.key))
        frame.bind(value=contiguous(frame, self.value))
        kv, dkv = Rotater(frame, "kv", self.local), Rotater(frame, "dkv", self.local, ring=True)
        for i in range(self.local.cp):
            if i > 0:
                buffer = kv.next_buffer()
                frame.bind(buffer=buffer, key=received(buffer, self.key),
                           value=received(buffer, self.value))
            if i < self.local.cp - 1:
                frame.bind(next_kv=frame.make(joined(self.key)))
                kv.exchange(frame["next_kv"])
            self.block_backward(frame, i, y, strides)
            if i > 0:
                self.add_to_received(frame, i, dkv.next_buffer())
            self.join_gradients(frame)
            dkv.exchange(frame["next_grad_kv"])
            if i > 0 and not self.early(i):
                frame.bind(grad_query=frame.make(frame["grad_query"].like("d(query) fp32")))
        if dq.dtype == "float32":
            # `.to` of the same dtype is the same tensor
            return renamed(frame, {frame["grad_query"]: dq, dkv.next_buffer(): flat})
        frame.bind(grad_query=frame.make(dq))
        frame.bind(next_grad_kv=frame.make(flat))
        return frame.finish(dq, flat)

    def block_backward(self, frame: Frame, i: int, y: Tensor, strides: Strides) -> None:
        """The kernel's backward of round i."""
        query, key = self.block(i, frame["key"])
        out, lies = y, strides
        if i > 0 and not self.early(i):
            out = half(y)
            lies = half(y.view("d(attention)", y.shape, strides)).strides
            frame.bind(k=key, v=frame["value"], lse=halved_logsumexp(frame, self.query))
        else:
            frame.bind(k=key, v=frame["value"])
        flash = self.settings.kernel == "flash"
        made = tuple((same_layout if flash else heads_inside)(t, name) for t, name in
                     ((query, "block d(query)"), (key, "block d(key)"), (key, "block d(value)")))
        moves = (flash_backward(out, lies, made) if flash else efficient_backward(
            self.tape, self.settings, (query, key), lies, made))
        frame.play(moves, made)
        frame.bind(grad_query_=made[0], grad_key_=made[1], grad_value_=made[2])

    def add_to_received(self, frame: Frame, i: int, buffer: Tensor) -> None:
        """Gradients of the block's keys and values, from the ranks that it has passed."""
        frame.bind(next_grad_kv=buffer)
        for name in ("grad_key", "grad_value"):
            frame.bind(**{name: buffer.view(name, self.key.shape)})
        if self.early(i):
            for name in ("grad_key", "grad_value"):
                frame.bind(**{name: frame.make(Tensor(name, self.key.shape, "float32"))})

    def join_gradients(self, frame: Frame) -> None:
        """torch.cat([grad_key.flatten(), grad_value.flatten()]): flatten copies what it must."""
        copies = [frame.make(Tensor("flat", t.shape, t.dtype))
                  for t in (frame["grad_key"], frame["grad_value"]) if t.strides is not None]
        frame.bind(next_grad_kv=frame.make(Tensor("sent d(key), d(value)", (2 * self.key.numel,),
                                                  "float32")))
        frame.discard(*copies)
