"""What sharding cannot do, or has no account of yet, and what it pads."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.run import Run
from gpuledger.errors import Problem
from gpuledger.program.local import Local, padded_vocab_size
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.tensor import ITEMSIZE

from .context import context_problems

PIPELINED = (None, "single", "megatron")


def unmodelled_sharding(run: Run) -> Iterator[Problem]:
    """Combinations of axes, losses, kernels and frameworks without an account."""
    parallel, training, model = run.parallel, run.training, run.model
    if parallel.pp > 1 and parallel.framework not in PIPELINED:
        yield Problem(
            f"pp = {parallel.pp} with framework: {parallel.framework} is not modelled yet",
            "use pp=1, or framework: megatron",
        )
    if parallel.pp > 1 and parallel.zero_stage == 3:
        yield Problem(
            f"pp = {parallel.pp} with zero_stage 3 is not modelled yet", "use zero_stage 0 to 2"
        )
    if parallel.tp > 1 and parallel.framework not in (*PIPELINED, "fsdp2"):
        yield Problem(
            f"tp = {parallel.tp} with framework: {parallel.framework} is not modelled yet",
            "use tp=1, or framework: megatron or fsdp2",
        )
    if parallel.tp > 1 and training.loss in ("chunked", "fused_linear"):
        yield Problem(
            f"loss: {training.loss} over a vocabulary divided by tp = {parallel.tp} is not "
            "modelled",
            "use loss: cross_entropy",
        )
    if parallel.tp > 1 and model.qk_norm == "full":
        yield Problem(
            f"qk_norm: full norms over all heads, which tp = {parallel.tp} divides", "use tp=1"
        )
    if parallel.tp > 1 and training.optimizer in ("adafactor", "muon"):
        yield Problem(
            f"optimizer {training.optimizer} keeps states of whole matrices, and "
            f"tp = {parallel.tp} divides them",
            "use optimizer: adamw",
        )
    if parallel.tp > 1 and parallel.framework == "fsdp2" and parallel.fsdp2.reshard_to:
        yield Problem("PyTorch does not reshard DTensors to fewer ranks (fsdp2.reshard_to) yet",
                      "leave fsdp2.reshard_to out, or set tp: 1")
    yield from _checkpoint_per_operator(run)
    yield from _offloaded_inputs(run)
    yield from _pipeline(run)
    if parallel.cp > 1 and parallel.framework != "megatron":
        yield from context_problems(run)


def _checkpoint_per_operator(run: Run) -> Iterator[Problem]:
    """What recompute: per_op has no account of."""
    if run.training.recompute != "per_op":
        return
    if run.training.attention == "math":
        yield Problem("recompute: per_op with attention: math is not modelled: under it PyTorch takes the "
                      "kernel apart", "use attention: flash or efficient")
    if run.parallel.framework in ("megatron", "deepspeed"):
        yield Problem(f"recompute: per_op is torchtitan's, and not modelled in framework: "
                      f"{run.parallel.framework}", "use recompute: full or selective")


def _offloaded_inputs(run: Run) -> Iterator[Problem]:
    """Where offload: block_inputs has no account."""
    if run.training.offload == "none":
        return
    if run.parallel.pp > 1 or run.parallel.framework in ("megatron", "deepspeed"):
        yield Problem(f"offload: {run.training.offload} with pipeline stages, or in framework megatron or "
                      "deepspeed, is not modelled", "leave offload out")


def _pipeline(run: Run) -> Iterator[Problem]:
    parallel, m = run.parallel, run.num_microbatches
    if parallel.pp > run.model.num_layers:
        yield Problem(f"pp = {parallel.pp} stages for {run.model.num_layers} blocks", "lower pp")
    if (
        parallel.pipeline_schedule == "dualpipe"
        and parallel.pp > 1
        and (m % 2 or m < 2 * parallel.pp)
    ):
        yield Problem(
            f"schedule: dualpipe sends half of the micro-batches each way and needs at least "
            f"{2 * parallel.pp}, not {m}",
            f"raise global_batch_size to an even number of "
            f"micro-batches, {2 * parallel.pp} or more per rank",
        )
    if run.training.keep_logits and parallel.pp > 1:
        yield Problem("keep_logits with pipeline stages is not modelled", "leave keep_logits out")




def sharding_assumptions(run: Run) -> Iterator[str]:
    """What is padded or left out, one line each."""
    parallel, model = run.parallel, run.model
    if parallel.cp > 1 and parallel.framework != "megatron":
        yield (f"{run.training.seq_len // parallel.cp:,} tokens of each sequence on a rank, in two pieces; "
               f"context-parallel rank {parallel.cp_rank} of {parallel.cp}, which needs most")
    if parallel.pp > 1 and parallel.model_parallel_library == "torch":
        yield buffers_of_torch_pipelining(run)
    if parallel.tp == 1 and parallel.framework != "megatron":
        return
    if parallel.model_parallel_library == "torch" and model.vocab_size % parallel.tp:
        rows = padded_vocab_size(model.vocab_size, parallel) // parallel.tp
        yield (f"vocabulary of {model.vocab_size:,} rows in pieces of {rows:,} on tensor-parallel ranks; "
               "the last have fewer")
        return
    padded = padded_vocab_size(model.vocab_size, parallel)
    if padded != model.vocab_size:
        yield (
            f"vocabulary padded from {model.vocab_size:,} to {padded:,} rows, "
            f"{padded // parallel.tp:,} on each tensor-parallel rank"
        )


def buffers_of_torch_pipelining(run: Run) -> str:
    """What torch.distributed.pipelining keeps and the account does not.

    A buffer for each micro-batch's activation and gradient, from the first step on.
    Ref: torch/distributed/pipelining/stage.py (_create_act_recv_info, _create_grad_recv_info).
    """
    local = Local.of_rank(run.model, run.training, run.parallel)
    dtype = PRECISIONS[run.training.precision].weight_dtype
    one = local.micro_batch_size * local.residual_seq_len * run.model.hidden_size * ITEMSIZE[dtype]
    return (f"torch.distributed.pipelining keeps {run.num_microbatches} received activations and as many "
            f"gradients of {one:,} B for each chunk of a middle stage; only those in flight are counted")
