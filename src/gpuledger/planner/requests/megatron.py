"""Arguments of Megatron-LM's pretrain_gpt.py that a run stands for.

They are read back by formats/megatron.py: whatever comes back otherwise is refused, so that no run is
launched as another one. Ref: megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...config.megatron import MegatronOptions
from ...config.problems import validated
from ...config.run import Run
from ...errors import InputError, Problem
from ...formats.megatron import parse_command, run_keys_of
from .options import RequestOptions
from .resources import Resources
from .words import quoted

SCRIPT = "pretrain_gpt.py"
BACKENDS = {"flash": "flash", "cudnn": "fused", "eager": "unfused"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
STATE_DTYPES = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
# Flags that are true of Megatron's options, by argument.
FLAGS = {
    "overlap_grad_reduce": "overlap-grad-reduce",
    "pad_buckets_for_high_nccl_busbw": "ddp-pad-buckets-for-high-nccl-busbw",
    "reduce_gradients_in_16_bit": "grad-reduce-in-bf16",
    "account_for_embedding": "account-for-embedding-in-pipeline-split",
    "account_for_loss": "account-for-loss-in-pipeline-split",
    "accumulate_allreduce_grads_in_fp32": "accumulate-allreduce-grads-in-fp32",
    "overlap_p2p_communication_warmup_flush": "overlap-p2p-communication-warmup-flush",
    "cross_entropy_loss_fusion": "cross-entropy-loss-fusion",
    "defer_embedding_wgrad_compute": "defer-embedding-wgrad-compute",
}
# Numbers and their defaults are Megatron's own: said where they differ.
NUMBERS = {
    "make_vocab_size_divisible_by": "make-vocab-size-divisible-by",
    "distributed_optimizer_instances": "num-distributed-optimizer-instances",
    "microbatch_group_size": "microbatch-group-size-per-virtual-pipeline-stage",
    "wgrad_deferral_limit": "wgrad-deferral-limit",
}
# Keys of a run that name what Megatron has one kind of (its projections are fused, its optimizer and
# norms its own), or that are said by an argument the reader has no key for.
NOT_COMPARED = {
    "model": ("name", "qkv_projection", "gate_up_projection"),
    "training": ("optimizer_implementation", "rmsnorm_implementation", "gradient_clipping"),
    "parallel": ("model_parallel", "schedule", "stage_layers"),
}


def megatron_words(run: Run, options: RequestOptions, resources: Resources) -> list[str]:
    """All arguments. Raises InputError with every key that Megatron's arguments cannot say."""
    words = [word for name, value in arguments(run) for word in argument(name, value)]
    if options.script_arguments and not options.script_arguments[0].startswith("-"):
        raise InputError(f"{options.script_arguments[0][:60]!r} is no argument of {SCRIPT}",
                         "it takes --name value only")
    read_back(run, [*words, *options.script_arguments])
    words += [word for name, value in job_arguments(options, resources) for word in argument(name, value)]
    return words


def argument(name: str, value: Any) -> list[str]:
    """`--name value`, several of a tuple; a flag where it is true, nothing where false or None."""
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    return [f"--{name}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]


def arguments(run: Run) -> Iterator[tuple[str, Any]]:
    """Model, step, mesh and options."""
    yield from model_arguments(run)
    yield from training_arguments(run)
    yield from mesh_arguments(run)
    yield from option_arguments(run.parallel.megatron, run.training.attention)


def model_arguments(run: Run) -> Iterator[tuple[str, Any]]:
    model = run.model
    grouped = model.num_kv_heads != model.num_heads
    yield "num-layers", model.num_layers
    yield "hidden-size", model.hidden_size
    yield "ffn-hidden-size", model.ffn_hidden_size
    yield "num-attention-heads", model.num_heads
    yield "kv-channels", model.head_dim
    yield "group-query-attention", grouped
    yield "num-query-groups", model.num_kv_heads if grouped else None
    yield "vocab-size", model.vocab_size
    yield "max-position-embeddings", model.max_position_embeddings
    kinds = {"rotary": "rope", "learned": "learned_absolute"}
    yield "position-embedding-type", kinds.get(model.positions, model.positions)
    yield "normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
    yield "swiglu", model.activation == "swiglu"
    yield "squared-relu", model.activation == "squared_relu"
    yield "qk-layernorm", model.qk_norm == "head"
    yield "disable-bias-linear", not model.bias.mlp_up
    yield "add-qkv-bias", model.bias.query and not model.bias.mlp_up
    yield "untie-embeddings-and-output-weights", not model.tie_embeddings
    yield "hidden-dropout", model.dropout
    yield "attention-dropout", model.attention_dropout


def training_arguments(run: Run) -> Iterator[tuple[str, Any]]:
    training, half = run.training, run.training.precision == "bf16-master"
    yield "seq-length", training.seq_len
    yield "micro-batch-size", training.micro_batch_size
    yield "global-batch-size", training.global_batch_size
    yield "bf16", half and run.parallel.megatron.params_dtype == "bfloat16"
    yield "fp16", half and run.parallel.megatron.params_dtype == "float16"
    yield "clip-grad", 1.0 if training.gradient_clipping else 0.0
    recompute, options = training.recompute, run.parallel.megatron
    whole, part = recompute == "full", recompute == "selective"
    yield "recompute-granularity", recompute if whole or part else None
    yield "recompute-modules", options.recompute_modules if part else None
    yield "recompute-method", options.recompute_method if whole else None
    yield "recompute-num-layers", options.recompute_num_layers if whole else None


def mesh_arguments(run: Run) -> Iterator[tuple[str, Any]]:
    axes = run.parallel
    yield "tensor-model-parallel-size", axes.tp
    yield "pipeline-model-parallel-size", axes.pp
    yield "num-virtual-stages-per-pipeline-rank", axes.vpp if axes.vpp > 1 else None
    yield "context-parallel-size", axes.cp
    yield "cp-comm-type", "all_gather" if axes.context_exchange == "all-gather" else None
    yield "sequence-parallel", axes.sequence_parallel
    yield "use-distributed-optimizer", axes.zero_stage == 1
    yield from stage_arguments(run)


def stage_arguments(run: Run) -> Iterator[tuple[str, int]]:
    """First and last stage where they have other numbers of blocks. Raises InputError for the rest."""
    parallel, L = run.parallel, run.model.num_layers
    pp, given = parallel.pp, parallel.stage_layers
    if given is None or len(set(given)) == 1:
        counted = parallel.megatron.account_for_embedding + parallel.megatron.account_for_loss
        if (L + counted) % (pp * parallel.vpp):
            raise InputError(
                f"{L + counted} blocks do not divide over pp x vpp = {pp} x {parallel.vpp}",
                "change pp or vpp, or name stage_layers with other first and last stages")
        return
    middle = set(given[1:-1]) or {given[0]}
    if len(middle) > 1:
        raise InputError(f"stage_layers = {list(given)}: Megatron's middle stages are all alike",
                         "change the first and the last stage only")
    yield "decoder-first-pipeline-num-layers", given[0]
    yield "decoder-last-pipeline-num-layers", given[-1]


def option_arguments(options: MegatronOptions, attention: str) -> Iterator[tuple[str, Any]]:
    local = options.transformer_impl == "local"
    yield "transformer-impl", options.transformer_impl
    yield "attention-backend", None if local else BACKENDS.get(attention, attention)
    for name, word in FLAGS.items():
        yield word, getattr(options, name)
    for name, word in NUMBERS.items():
        value = getattr(options, name)
        yield word, None if value == MegatronOptions.model_fields[name].default else value
    yield "no-overlap-p2p-communication", not options.overlap_p2p_communication
    yield "no-create-attention-mask-in-dataloader", not options.attention_mask_in_dataloader
    in_fp32 = options.softmax_in_float32 and local
    yield "no-masked-softmax-fusion", in_fp32
    yield "attention-softmax-in-fp32", in_fp32
    yield "use-precision-aware-optimizer", options.use_precision_aware_optimizer
    if options.use_precision_aware_optimizer:
        for name in STATE_DTYPES:
            yield name.replace("_", "-"), DTYPES[getattr(options, name)]


def job_arguments(options: RequestOptions, resources: Resources) -> Iterator[tuple[str, Any]]:
    """How long it runs and when it saves; nothing that changes memory."""
    yield "train-iters", resources.steps
    yield "save", options.checkpoint_folder
    yield "load", options.checkpoint_folder
    yield "save-interval", resources.cadence.steps or resources.steps     # it insists on one
    # Megatron looks at the clock after each step, and saves before it leaves.
    yield "exit-duration-in-mins", max(1, int(resources.job_seconds - options.stop_seconds) // 60)
    yield "exit-signal-handler", True


def read_back(run: Run, words: list[str]) -> None:
    """Raises InputError with every key that our own reader of Megatron's arguments finds otherwise."""
    keys = run_keys_of(parse_command(" ".join(quoted(word) for word in words)), run.cluster.gpus)
    keys["parallel"]["megatron"] = {name: value for name, value in keys["parallel"]["megatron"].items()
                                    if value is not None}
    found = validated(Run, {**keys, "name": run.name, "cluster": run.cluster.model_dump()})
    problems = []
    for part, ignored in NOT_COMPARED.items():
        said, wanted = getattr(found, part).model_dump(), getattr(run, part).model_dump()
        if wanted.get("activation") == "gelu_tanh":
            wanted["activation"] = "gelu"      # --bias-gelu-fusion, its default, is the tanh form
        problems += [problem for key in wanted if key not in ignored and key != "megatron"
                     for problem in differences(f"{part}.{key}", wanted[key], said[key])]
    for key, value in run.parallel.megatron.model_dump().items():
        problems += differences(f"megatron.{key}", value, getattr(found.parallel.megatron, key))
    if run.parallel.pipeline_schedule != found.parallel.pipeline_schedule:
        problems += differences("parallel.schedule", run.parallel.pipeline_schedule,
                                found.parallel.pipeline_schedule)
    problems += stage_problems(run, found)
    if problems:
        raise InputError.of(problems)


def differences(key: str, wanted: Any, said: Any) -> list[Problem]:
    """At most one problem."""
    if wanted == said:
        return []
    return [Problem(f"{key} = {wanted!r}: Megatron's arguments say {said!r}",
                    "change it in the run, or leave the argument out that says otherwise")]


def stage_problems(run: Run, found: Run) -> list[Problem]:
    """Stages of one size need no words."""
    given = run.parallel.stage_layers
    even = given is None or len(set(given)) == 1
    return [] if even else differences("parallel.stage_layers", given, found.parallel.stage_layers)
