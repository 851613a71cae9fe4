"""The seconds of one optimizer step, every term by name; they add up to the step."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .arithmetic import Number

COMPUTE = ("gemm", "attention", "pointwise", "recompute", "head", "host_wait", "accumulation")
COMMUNICATION = (
    "tensor_parallel",
    "context_parallel",
    "zero_gathers",
    "pipeline_sends",
    "data_parallel",
)


@dataclass(frozen=True)
class Breakdown:
    """Seconds per step on the slowest pipeline stage. What runs beside something else counts only
    as far as it is seen."""

    gemm: Number
    """Matrix products of the layers, forward and backward."""
    attention: Number
    """Attention cores, forward and backward."""
    pointwise: Number
    """Norms, residuals, activations, rotation, casts, forward and backward."""
    recompute: Number
    """Forward work that is run again."""
    head: Number
    """Embedding, logits and loss, as far as they make the last stage the slowest."""
    host_wait: Number
    """The device waits for the host to enqueue kernels."""
    accumulation: Number
    """Adding gradients of micro-batches."""
    tensor_parallel: Number
    """All-reduces (or gathers and scatters) inside the layers, recompute's included."""
    context_parallel: Number
    """Keys and values around the ring, as far as attention does not hide them."""
    zero_gathers: Number
    """ZeRO-3: gathers of weights, scatters of gradients."""
    pipeline_sends: Number
    """Activations and their gradients between stages."""
    data_parallel: Number
    """The reduction of gradients, and ZeRO 1's and 2's gather of the updated weights."""
    bubble: Number
    """Waiting for other stages when the pipeline fills and drains."""
    optimizer: Number
    """The optimizer's own traffic, and under fp8 the cast of the updated weights."""

    @property
    def terms(self) -> dict[str, Number]:
        """All terms in this order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def step_seconds(self) -> Number:
        return sum(self.terms.values())

    @property
    def compute(self) -> Number:
        """Everything that a stage computes for its micro-batches."""
        return sum(self.terms[name] for name in COMPUTE)

    @property
    def exposed_communication(self) -> Number:
        """Communication that nothing hides."""
        return sum(self.terms[name] for name in COMMUNICATION)
