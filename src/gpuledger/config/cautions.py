"""What is allowed but rarely meant: sentences for the reader of an estimate."""

from __future__ import annotations

from collections.abc import Iterator

from .fused_kernels import fallbacks
from .run import Run


def cautions(run: Run) -> tuple[str, ...]:
    """Warnings about a valid run."""
    parts = fallbacks(run.model, run.training)
    kept = (f"kernels: fused leaves to PyTorch: {part}" for part in parts)
    return (*_model_cautions(run), *_hardware_cautions(run), *_context_cautions(run),
            *_time_cautions(run), *kept)


def _context_cautions(run: Run) -> Iterator[str]:
    if run.parallel.framework == "megatron" and run.parallel.cp > 1:
        yield (
            "context parallelism of Transformer Engine: attention over a part of the sequence; the "
            "buffers of its ring are not modelled (recorded peaks are up to 1 % higher)"
        )


def _time_cautions(run: Run) -> Iterator[str]:
    options = run.parallel.megatron
    if options.recompute_method == "block" or options.recompute_modules != ("core_attn",):
        counted = "every block" if options.recompute_method == "block" else "the attention core"
        yield f"hardware FLOPs and step time count {counted} as run again, whatever megatron's options say"
    if run.training.kernels == "fused":
        yield (
            "step time with kernels: fused leaves out what they read and write in place and beside "
            "their products"
        )


def _model_cautions(run: Run) -> Iterator[str]:
    model, training = run.model, run.training
    if training.seq_len > model.max_position_embeddings:
        yield (
            f"seq_len = {training.seq_len} is longer than max_position_embeddings = "
            f"{model.max_position_embeddings} of {model.name}"
        )
    if training.rmsnorm_implementation == "composed" and model.norm != "rmsnorm":
        yield f"rmsnorm_implementation: composed has no effect, {model.name} has no RMSNorm"
    if model.num_heads * model.head_dim != model.hidden_size and model.positions == "learned":
        yield (
            f"num_heads x head_dim = {model.num_heads} x {model.head_dim} is not "
            f"hidden_size = {model.hidden_size}"
        )


def _hardware_cautions(run: Run) -> Iterator[str]:
    gpu, cluster, axes = run.cluster.gpu, run.cluster, run.parallel
    capability = gpu.compute_capability
    brain_float = run.training.precision.startswith("bf16")
    if brain_float and gpu.vendor == "nvidia" and capability is not None and capability < (8, 0):
        yield (
            f"{gpu.name} (compute capability {gpu.capability}) has no bf16 tensor cores: "
            "PyTorch emulates bf16 slowly"
        )
    if axes.tp > cluster.gpus_per_node:
        yield (
            f"tp = {axes.tp} reaches beyond the {cluster.gpus_per_node} GPUs of a node: its "
            "collectives run over the network"
        )
