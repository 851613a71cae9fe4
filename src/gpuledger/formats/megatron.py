"""Launch arguments of Megatron-LM's pretrain_gpt.py, unmodified, to the keys of a run.

Defaults are Megatron's own (megatron/training/arguments.py). What changes memory and has no account is
refused by name; what does not change memory (paths, logging, learning rates, seeds) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InputError, NotYetError, Problem
from .megatron_script import parse_command as parse_command

Arguments = Mapping[str, Any]

# Vocabulary of tokenizers whose size no argument names.
VOCABULARIES = {"GPT2BPETokenizer": 50_257, "TikTokenizer": 131_072}
BACKENDS = {"flash": "flash", "fused": "cudnn", "unfused": "eager"}
NOT_MODELLED = {
    "num-experts": "mixture of experts",
    "multi-latent-attention": "multi-latent attention",
    "mtp-num-layers": "multi-token prediction",
    "fp8-format": "FP8",
    "fp4-format": "FP4",
    "use-megatron-fsdp": "Megatron-FSDP",
    "use-torch-fsdp2": "FSDP2 inside Megatron",
    "export-kd-cfg": "distillation",
    "perform-rl-step": "reinforcement learning",
    "experimental-attention-variant": "another attention",
    "hybrid-override-pattern": "hybrid layers",
    "hybrid-layer-pattern": "hybrid layers",
    "optimizer-cpu-offload": "an optimizer on the CPU",
    "fine-grained-activation-offloading": "activation offload",
    "cuda-graph-impl": "CUDA graphs",
    "enable-cuda-graph": "CUDA graphs",
    "pipeline-model-parallel-layout": "a pipeline layout in words",
    "cpu-offloading": "activation offload",
    "offload-optimizer-states": "optimizer states on the CPU",
    "distribute-saved-activations": "checkpoints divided over tp",
    "tp-comm-overlap": "user buffers of tensor parallelism",
    "use-nccl-ub": "user buffers of NCCL",
    "fp32-residual-connection": "a residual stream in fp32",
    "apply-residual-connection-post-layernorm": "another residual connection",
    "window-size": "attention in a window",
    "no-bias-dropout-fusion": "dropout and addition apart",
    "no-bias-gelu-fusion": "bias and GELU apart",
    "no-bias-swiglu-fusion": "bias and SwiGLU apart",
}
MODULES = ("core_attn", "mlp", "layernorm")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def launch_keys(arguments: Arguments) -> dict[str, Any]:
    """The keys of a run: as run_keys_of, and the GPUs where the launcher's arguments say them."""
    given = {key.lstrip("-").replace("_", "-"): value for key, value in arguments.items()}
    per_node, nodes = given.get("nproc-per-node"), given.get("nnodes", 1)
    keys = run_keys_of(arguments, None)
    if str(given.get("attention-backend", "auto")) == "auto" and keys["training"]["attention"] == "flash":
        del keys["training"]["attention"]    # the device picks: assumed, and said so
    if isinstance(per_node, int) and isinstance(nodes, int):
        keys["cluster"] = {"gpus": per_node * nodes, "gpus_per_node": per_node}
    return keys


def run_keys_of(arguments: Arguments, gpus: int | None) -> dict[str, Any]:
    """The parts model, training and parallel of a run on so many GPUs. [M17]

    gpus: None leaves dp, and a global batch that nobody names, to who knows the GPUs.
    Raises NotYetError with everything that changes memory and is not modelled, InputError for a missing
    size or a tokenizer whose vocabulary nobody names.
    """
    given = {key.lstrip("-"): value for key, value in arguments.items()}
    problems = [Problem(f"--{key}: {what} is not modelled yet", "estimate the run without it")
                for key, what in NOT_MODELLED.items() if given.get(key)]
    if given.get("optimizer", "adam") != "adam":
        problems.append(Problem(f"--optimizer {given['optimizer']} is not modelled yet",
                                "estimate the run with adam"))
    if given.get("cp-comm-type", "p2p") not in ("p2p", "all_gather"):
        problems.append(Problem(f"--cp-comm-type {given['cp-comm-type']} is not modelled yet",
                                "estimate the run with p2p"))
    if problems:
        raise NotYetError.of(problems)
    reader = _Reader(given, gpus)
    return {"model": dict(reader.model()), "training": dict(reader.training()),
            "parallel": dict(reader.parallel())}


class _Reader:
    """One launch. Names of methods and variables are those of the run's keys."""

    def __init__(self, given: dict[str, Any], gpus: int | None):
        self.given = given
        self.tp, self.pp, self.cp = (self.whole(f"{axis}-size", 1) for axis in (
            "tensor-model-parallel", "pipeline-model-parallel", "context-parallel"))
        rest = self.tp * self.pp * self.cp
        if gpus is not None and gpus % rest:
            raise InputError(f"tp x pp x cp = {self.tp} x {self.pp} x {self.cp} does not divide "
                             f"{gpus} GPUs", f"say a multiple of {rest} GPUs")
        self.dp = None if gpus is None else gpus // rest

    def whole(self, key: str, default: int | None = None) -> int:
        """A number of the launch, or its default. Raises InputError where both are missing."""
        value = self.given.get(key, default)
        if value is None:
            raise InputError(f"--{key} is missing", "name every size of the model")
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"--{key} {value!r} is not a whole number",
                             "write the number out: only variables that the script sets are filled in")
        return value

    def share(self, key: str) -> float:
        return float(self.given.get(key, 0.1))

    def flag(self, key: str) -> bool:
        return bool(self.given.get(key))

    @property
    def engine(self) -> bool:
        return bool(self.given.get("transformer-impl", "transformer_engine") == "transformer_engine")

    def model(self) -> Iterator[tuple[str, Any]]:
        hidden_size, num_heads = self.whole("hidden-size"), self.whole("num-attention-heads")
        gated, bias = self.flag("swiglu"), not self.flag("disable-bias-linear")
        rms = self.given.get("normalization", "LayerNorm") == "RMSNorm"
        ffn = 4 * hidden_size if not gated else int(4 * hidden_size * 2 / 3) // 64 * 64
        groups = self.whole("num-query-groups", 1) if self.flag("group-query-attention") else num_heads
        yield "name", "megatron"
        yield "num_layers", self.whole("num-layers")
        yield "hidden_size", hidden_size
        yield "num_heads", num_heads
        yield "num_kv_heads", groups
        yield "head_dim", self.whole("kv-channels", hidden_size // num_heads)
        yield "ffn_hidden_size", self.whole("ffn-hidden-size", ffn)
        yield "vocab_size", self.vocab_size()
        yield "max_position_embeddings", self.whole("max-position-embeddings")
        yield "norm", "rmsnorm" if rms else "layernorm"
        yield "activation", self.activation(gated)
        yield "positions", self.positions()
        if self.positions() == "rotary" and self.given.get("rotary-percent", 1.0) < 1:
            width = self.whole("kv-channels", hidden_size // num_heads)
            yield "rotary_dim", int(width * self.given["rotary-percent"])
        yield "qkv_projection", "fused"
        yield "gate_up_projection", "fused" if gated else "separate"
        yield "qk_norm", "head" if self.flag("qk-layernorm") else "none"
        projections = ("query", "key_value", "attention_out", "mlp_up", "mlp_down")
        qkv = dict.fromkeys(projections[:2], bias or self.flag("add-qkv-bias"))
        yield "bias", dict.fromkeys(projections, bias) | qkv | {"norm": not rms}
        yield "tie_embeddings", not self.flag("untie-embeddings-and-output-weights")
        yield "dropout", self.share("hidden-dropout")
        yield "embedding_dropout", self.share("hidden-dropout")
        yield "attention_dropout", self.share("attention-dropout")

    def activation(self, gated: bool) -> str:
        if gated:
            return "swiglu"
        return "squared_relu" if self.flag("squared-relu") else "gelu"

    def positions(self) -> str:
        rotary = self.flag("use-rotary-position-embeddings")
        kind = self.given.get("position-embedding-type", "learned_absolute")
        if rotary or kind == "rope":
            return "rotary"
        return "learned" if kind == "learned_absolute" else "none"

    def vocab_size(self) -> int:
        tokenizer = self.given.get("tokenizer-type", "GPT2BPETokenizer")
        if tokenizer == "NullTokenizer":
            return self.whole("vocab-size") + 1          # its end-of-document token
        if "vocab-size" in self.given:
            return self.whole("vocab-size")
        if tokenizer not in VOCABULARIES:
            raise InputError(f"--tokenizer-type {tokenizer}: its vocabulary is in a file",
                             "say its size with --vocab-size")
        return VOCABULARIES[tokenizer]

    def training(self) -> Iterator[tuple[str, Any]]:
        micro = self.whole("micro-batch-size")
        yield "seq_len", self.whole("seq-length")
        yield "micro_batch_size", micro
        if self.dp is not None or "global-batch-size" in self.given:
            yield "global_batch_size", self.whole("global-batch-size", micro * (self.dp or 1))
        yield "precision", self.precision()
        yield "optimizer", "adamw"
        yield "attention", self.attention()
        yield "recompute", self.recompute()
        yield "loss", "cross_entropy"

    def precision(self) -> str:
        return "bf16-master" if self.flag("bf16") or self.flag("fp16") else "fp32"

    def attention(self) -> str:
        backend = str(self.given.get("attention-backend", "flash"))
        if not self.engine:
            return "eager"
        return BACKENDS.get(backend, "flash")

    def recompute(self) -> str:
        if self.flag("recompute-activations"):
            return "selective"
        return str(self.given.get("recompute-granularity") or "none")

    def recompute_options(self) -> Iterator[tuple[str, Any]]:
        """Method and layers of full, modules of selective recompute."""
        if self.recompute() == "full":
            yield "recompute_method", self.given.get("recompute-method", "uniform")
            yield "recompute_num_layers", self.whole("recompute-num-layers", 1)
        modules = self.given.get("recompute-modules")
        if self.recompute() != "selective" or modules is None:
            return
        named = modules if isinstance(modules, list) else str(modules).strip("[]").replace(",", " ").split()
        unknown = [name for name in named if name not in MODULES]
        if unknown:
            raise NotYetError(f"--recompute-modules {' '.join(named)}: {unknown[0]} is not modelled",
                              f"of a dense model's {', '.join(MODULES)} are")
        yield "recompute_modules", tuple(named)

    def parallel(self) -> Iterator[tuple[str, Any]]:
        if self.dp is not None:
            yield "dp", self.dp
        yield "tp", self.tp
        yield "pp", self.pp
        yield "cp", self.cp
        yield "sequence_parallel", self.flag("sequence-parallel") and self.tp > 1
        yield "framework", "megatron"
        if self.given.get("cp-comm-type") == "all_gather":
            yield "context_exchange", "all-gather"
        yield "zero_stage", int(self.flag("use-distributed-optimizer") or self.flag("overlap-param-gather"))
        layers, chunks = self.stages()
        yield "vpp", chunks
        if layers is not None:
            yield "stage_layers", layers
        yield "megatron", dict(self.options())

    def stages(self) -> tuple[tuple[int, ...] | None, int]:
        """Blocks of each stage where they are named, and chunks of a stage."""
        first, last = (self.given.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
        total, per_chunk = self.whole("num-layers"), self.given.get("num-layers-per-virtual-pipeline-stage")
        layers = None
        if first or last:
            ends = [n for n in (first, last) if n]
            middle, rest = divmod(total - sum(ends), self.pp - len(ends)) if self.pp > len(ends) else (0, 0)
            if rest:
                raise InputError(f"{total - sum(ends)} blocks do not divide over {self.pp - len(ends)} "
                                 "stages", "change --decoder-first/last-pipeline-num-layers")
            layers = (*([first] if first else []), *[middle] * (self.pp - len(ends)),
                      *([last] if last else []))
        if per_chunk:
            return layers, (layers[-1] if layers else total // self.pp) // per_chunk
        return layers, self.whole("num-virtual-stages-per-pipeline-rank", 1)

    def options(self) -> Iterator[tuple[str, Any]]:
        """Megatron's own options. See config/megatron.py."""
        yield "transformer_impl", "transformer_engine" if self.engine else "local"
        yield "params_dtype", "float16" if self.flag("fp16") else "bfloat16"
        yield "make_vocab_size_divisible_by", self.whole("make-vocab-size-divisible-by", 128)
        yield "overlap_grad_reduce", self.flag("overlap-grad-reduce")
        yield "distributed_optimizer_instances", self.whole("num-distributed-optimizer-instances", 1)
        yield "pad_buckets_for_high_nccl_busbw", self.flag("ddp-pad-buckets-for-high-nccl-busbw")
        yield "reduce_gradients_in_16_bit", self.flag("grad-reduce-in-bf16")
        yield ("accumulate_allreduce_grads_in_fp32",
               self.flag("accumulate-allreduce-grads-in-fp32") and self.flag("fp16"))
        yield from self.recompute_options()
        yield "account_for_embedding", self.flag("account-for-embedding-in-pipeline-split")
        yield "account_for_loss", self.flag("account-for-loss-in-pipeline-split")
        yield "microbatch_group_size", self.given.get("microbatch-group-size-per-virtual-pipeline-stage")
        yield "overlap_p2p_communication", not self.flag("no-overlap-p2p-communication")
        yield ("overlap_p2p_communication_warmup_flush",
               self.flag("overlap-p2p-communication-warmup-flush"))
        yield ("attention_mask_in_dataloader",
               not self.flag("no-create-attention-mask-in-dataloader"))
        yield "cross_entropy_loss_fusion", self.flag("cross-entropy-loss-fusion")
        yield "cross_entropy_fusion_impl", self.given.get("cross-entropy-fusion-impl", "native")
        yield "defer_embedding_wgrad_compute", self.flag("defer-embedding-wgrad-compute")
        yield "wgrad_deferral_limit", self.whole("wgrad-deferral-limit", 0)
        yield "softmax_in_float32", (
            not self.engine and self.flag("no-masked-softmax-fusion")
            and (self.flag("apply-query-key-layer-scaling") or self.flag("attention-softmax-in-fp32")))
        if not self.flag("use-precision-aware-optimizer"):
            return
        yield "use_precision_aware_optimizer", True
        for name in ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
            given = self.given.get(name.replace("_", "-"))
            if given:
                yield name, DTYPES.get(given, given)
