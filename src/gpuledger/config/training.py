"""`Training`: one optimizer step, as the user's script runs it."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from ..errors import Problem
from .record import Record

Precision = Literal["fp32", "tf32", "fp16-mixed", "bf16-mixed", "bf16", "bf16-master"]
Optimizer = Literal["sgd", "adam", "adamw", "adafactor", "lion", "muon", "adamw-8bit"]
Attention = Literal["eager", "math", "efficient", "flash", "cudnn"]
Loss = Literal["cross_entropy", "fp32_logits", "chunked", "fused_linear"]


class EveryK(Record):
    """`recompute: {every: 2}` recomputes one block in two."""

    every: int = Field(gt=0, description="blocks 0, k, 2k, ... are recomputed")


RecomputeWord = Literal["none", "selective", "per_op", "full"]


def _recompute_kind(value: Any) -> str:
    return "mapping" if isinstance(value, (dict, EveryK)) else "word"


# Discriminated, so that a mistake is reported for the form that was written and not for both.
Recompute = Annotated[
    Annotated[RecomputeWord, Tag("word")] | Annotated[EveryK, Tag("mapping")],
    Discriminator(_recompute_kind),
]

# What each optimizer's public implementation offers: torch.optim for all but lion (lion-pytorch)
# and adamw-8bit (bitsandbytes). The first one is taken where the run does not say.
IMPLEMENTATIONS: dict[str, tuple[str, ...]] = {
    "sgd": ("foreach", "fused", "for-loop"),
    "adam": ("foreach", "fused", "for-loop"),
    "adamw": ("foreach", "fused", "for-loop"),
    "adafactor": ("foreach", "for-loop"),
    "lion": ("for-loop",),
    "muon": ("for-loop",),
    "adamw-8bit": ("for-loop",),
}


class Training(Record):
    """What one rank does in one optimizer step. Sequences and tokens, never bytes."""

    seq_len: int = Field(gt=0, le=10**8, description="tokens of one sequence")
    micro_batch_size: int = Field(
        gt=0, le=10**6, description="sequences of one forward pass on one rank"
    )
    global_batch_size: int = Field(
        gt=0, le=10**9, description="sequences of one optimizer step over all data-parallel ranks"
    )
    precision: Precision = Field(
        description="fp32; tf32 (fp32 with TF32 products); fp16-mixed, bf16-mixed (autocast over "
        "fp32 weights); bf16 (weights and states in bf16); bf16-master (bf16 weights, fp32 master)"
    )
    optimizer: Optimizer = Field(description="the optimizer")
    optimizer_implementation: Literal["foreach", "fused", "for-loop"] = Field(
        default="foreach",
        description="as PyTorch's foreach= and fused=; left out, it is foreach where the optimizer "
        "has it (PyTorch's default on CUDA), otherwise for-loop (lion, muon, adamw-8bit)",
    )
    amsgrad: bool = Field(
        default=False, description="Adam(W) with the running maximum of the second moment"
    )
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.0, description="momentum of SGD; above 0 it keeps one state per parameter"
    )
    attention: Attention = Field(description="attention kernel")
    recompute: Recompute = Field(
        description="activation checkpointing: none, selective (the attention core), full (every "
        "block), {every: k}, or per_op (every block, but attention and every second matmul keep "
        "their output: torchtitan's selective op)"
    )
    offload: Literal["none", "block_inputs"] = Field(
        default="none",
        description="block_inputs: what a recomputed block keeps, its input, waits in the host's "
        "memory (torch.autograd.graph.save_on_cpu around each checkpoint)",
    )
    loss: Loss = Field(
        description="cross_entropy; fp32_logits (logits.float() first); chunked (over tokens); "
        "fused_linear (never the whole logits)"
    )
    loss_chunks: int = Field(
        default=8, gt=0, description="pieces of the chunked and fused_linear losses"
    )
    rmsnorm_implementation: Literal["fused", "composed"] = Field(
        default="fused",
        description="torch.nn.functional.rms_norm, or elementary operators (Hugging Face)",
    )
    gradient_clipping: bool = Field(default=False, description="clip_grad_norm_ before the step")
    set_to_none: bool = Field(
        default=True, description="zero_grad(set_to_none=...): False keeps gradients"
    )
    keep_logits: bool = Field(
        default=False, description="the caller keeps the model's logits through backward"
    )
    kernels: Literal["torch", "fused"] = Field(
        default="torch",
        description="torch; fused (gpuledger's kernels, where one exists: docs/kernels.md)",
    )

    @classmethod
    def prepared(cls, values: Any) -> Any:
        """Where nothing is said, the optimizer runs in the first implementation that it has."""
        if isinstance(values, dict) and "optimizer_implementation" not in values:
            offered = IMPLEMENTATIONS.get(str(values.get("optimizer")))
            return values | {"optimizer_implementation": offered[0]} if offered else values
        return values

    def cross_field_problems(self) -> Iterator[Problem]:
        yield from _optimizer_problems(self)
        yield from _kernel_problems(self)
        if self.global_batch_size % self.micro_batch_size:
            yield Problem(
                f"global_batch_size = {self.global_batch_size} is not a multiple of "
                f"micro_batch_size = {self.micro_batch_size}",
                "it counts sequences of one optimizer step: micro_batch_size x dp x microbatches",
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.global_batch_size * self.seq_len

    def optimizer_steps(self, tokens: int) -> int:
        """Whole optimizer steps that see at least so many tokens. [R2]"""
        return -(-tokens // self.tokens_per_step)

    @property
    def computes_in_16_bit(self) -> bool:
        """Matrix products and attention run on 16-bit numbers."""
        return self.precision not in ("fp32", "tf32")


def _optimizer_problems(training: Training) -> Iterator[Problem]:
    offered = IMPLEMENTATIONS[training.optimizer]
    if training.optimizer_implementation not in offered:
        yield Problem(
            f"optimizer_implementation: {training.optimizer_implementation} does not exist for "
            f"{training.optimizer}",
            f"{training.optimizer} has: {', '.join(offered)}",
        )
    if training.amsgrad and training.optimizer not in ("adam", "adamw"):
        yield Problem(
            f"amsgrad: true belongs to adam and adamw, not to {training.optimizer}",
            "leave amsgrad out, or set optimizer: adamw",
        )
    if training.momentum and training.optimizer != "sgd":
        yield Problem(
            f"momentum = {training.momentum} belongs to sgd, not to {training.optimizer}",
            "leave momentum out, or set optimizer: sgd",
        )


def _kernel_problems(training: Training) -> Iterator[Problem]:
    if training.kernels == "fused" and training.rmsnorm_implementation == "composed":
        yield Problem(
            "rmsnorm_implementation: composed asks for elementary operators, but kernels: fused "
            "has an RMSNorm of its own",
            "leave rmsnorm_implementation out, or set kernels: torch",
        )
    if training.offload != "none" and training.recompute in ("none", "selective"):
        yield Problem(
            f"offload: {training.offload} moves the inputs of recomputed blocks, but recompute is "
            f"{training.recompute}",
            "set recompute: full, per_op or {every: k}, or leave offload out",
        )
    if training.kernels == "fused" and training.recompute == "per_op":
        yield Problem(
            "recompute: per_op keeps outputs of PyTorch's operators, but kernels: fused replaces "
            "some of them",
            "use recompute: full, or kernels: torch",
        )
    if training.attention in ("flash", "cudnn") and not training.computes_in_16_bit:
        yield Problem(
            f"attention: {training.attention} computes in 16 bit only, but precision is "
            f"{training.precision}",
            "use attention: efficient, or precision: bf16-mixed",
        )
    chunked = training.loss in ("chunked", "fused_linear")
    if chunked and training.keep_logits:
        yield Problem(
            f"keep_logits: true, but loss: {training.loss} never has the whole logits",
            "leave keep_logits out, or set loss: cross_entropy",
        )
    if training.loss_chunks != Training.model_fields["loss_chunks"].default and not chunked:
        yield Problem(
            f"loss_chunks = {training.loss_chunks} has no effect with loss: {training.loss}",
            "set loss: chunked or fused_linear, or leave loss_chunks out",
        )
    tokens = training.micro_batch_size * training.seq_len
    if chunked and training.loss_chunks > tokens:
        yield Problem(
            f"loss_chunks = {training.loss_chunks} is more than the {tokens} tokens of a "
            "micro-batch",
            "each chunk needs at least one token",
        )
