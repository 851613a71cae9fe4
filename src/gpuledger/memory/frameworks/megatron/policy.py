"""The policy of Megatron-LM: its own modules, weights that every rank of a stage has whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.run import Run
from gpuledger.config.training import EveryK, Training
from gpuledger.errors import Problem
from gpuledger.program.device import Device
from gpuledger.program.megatron.build import build_megatron
from gpuledger.program.model import Program, Stage
from gpuledger.program.tensor import Tensor

from ...policy import Counted, Policy, Share
from ...update_rules import Moves
from .timeline import MegatronTimeline

ATTENTION = ("flash", "cudnn", "eager")


@dataclass(frozen=True)
class Megatron(Policy):
    """One rank. Who it is among the ranks that divide the optimizer matters to its shards alone."""

    parallel: Parallelism

    equation = "M13"

    @property
    def walks_layers_once(self) -> bool:
        """Layers of a group, or the first layers of a chunk, are not like the others."""
        options = self.parallel.megatron
        return options.recompute_method == "uniform" and options.recompute_num_layers == 1

    def build(self, run: Run, device: Device, part: Stage, num_layers: int | None = None) -> Program:
        return build_megatron(run, device, part, num_layers)

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> MegatronTimeline:
        return MegatronTimeline(program, interleaved=self.parallel.vpp > 1, workspaces=workspaces)

    def updated(self, weights: Counted) -> list[Share]:
        return []

    def clip(self, gradients: Sequence[Tensor]) -> Moves:
        """On the main gradients, in scalars."""
        return iter(())


def unmodelled_megatron(run: Run) -> Iterator[Problem]:
    """What Megatron does not do, or has no account."""
    yield from _training_problems(run.training)
    yield from _model_problems(run.model)
    yield from _recompute_problems(run)
    yield from _mesh_problems(run)


def _training_problems(training: Training) -> Iterator[Problem]:
    if training.precision != "bf16-master":
        yield Problem(f"framework: megatron trains 16-bit weights with fp32 masters, not {training.precision}",
                      "set precision: bf16-master (and megatron.params_dtype: float16 for --fp16)")
    if training.optimizer not in ("adam", "adamw") or training.amsgrad:
        name = f"{training.optimizer}{' with amsgrad' if training.amsgrad else ''}"
        yield Problem(f"framework: megatron with optimizer {name} is not modelled",
                      "use optimizer: adamw, without amsgrad")
    if training.attention not in ATTENTION:
        yield Problem(f"framework: megatron has no attention: {training.attention}",
                      "use flash, cudnn (its fused backend) or eager (unfused)")
    if training.loss != "cross_entropy":
        yield Problem(f"framework: megatron has its own loss, not {training.loss}",
                      "use loss: cross_entropy, perhaps with megatron.cross_entropy_loss_fusion")
    if training.kernels != "torch":
        yield Problem(f"framework: megatron has its own kernels, not kernels: {training.kernels}",
                      "set kernels: torch")
    if training.keep_logits or not training.set_to_none:
        key = "keep_logits: true" if training.keep_logits else "set_to_none: false"
        yield Problem(f"framework: megatron does not know {key}", "leave it out")


def _model_problems(model: Model) -> Iterator[Problem]:
    if (model.norm_position != "pre" or model.parallel_residual or model.attention_softcap
            or model.logits_softcap or model.sliding_window or model.positions == "alibi"
            or model.embedding_norm or model.embedding_scale or model.qk_norm == "full"):
        yield Problem("framework: megatron is modelled for blocks with norms before each sublayer and "
                      "without soft caps, windows, ALiBi and norms of the embedding",
                      "leave framework out: Megatron's tensor parallelism without its buffers")


    bias = model.bias
    if model.norm == "layernorm" and not bias.norm:
        yield Problem("framework: megatron: its LayerNorm has a bias, but bias.norm is false",
                      "set model.bias.norm: true, or norm: rmsnorm")
    if bias.query != bias.key_value or bias.head:
        yield Problem("framework: megatron has one bias for queries, keys and values, and none in the head",
                      "set model.bias.query and key_value alike, and head: false")


def _recompute_problems(run: Run) -> Iterator[Problem]:
    training, options = run.training, run.parallel.megatron
    if isinstance(training.recompute, EveryK):
        yield Problem(f"framework: megatron cannot recompute every {training.recompute.every} blocks",
                      "use recompute: full with megatron.recompute_method: block and recompute_num_layers, "
                      "or selective")
    grouped = options.recompute_method != "uniform" or options.recompute_num_layers != 1
    if grouped and training.recompute != "full":
        yield Problem("megatron.recompute_method and recompute_num_layers belong to recompute: full, not "
                      f"{training.recompute}", "set recompute: full, or leave them out")
    modules = options.recompute_modules
    if modules != ("core_attn",) and training.recompute != "selective":
        yield Problem(f"megatron.recompute_modules = {list(modules)} belong to recompute: selective, not "
                      f"{training.recompute}", "set recompute: selective, or leave them out")
    if "layernorm" in modules and options.transformer_impl == "local":
        yield Problem("megatron.recompute_modules: layernorm with local layers is not modelled",
                      "use transformer_impl: transformer_engine, whose norms are part of the linears")


def _mesh_problems(run: Run) -> Iterator[Problem]:
    parallel, options = run.parallel, run.parallel.megatron
    if parallel.model_parallel == "torch":
        yield Problem("framework: megatron has its own tensor parallelism", "leave model_parallel out")
    if parallel.pipeline_schedule not in ("1f1b", "interleaved"):
        yield Problem(f"framework: megatron has no schedule: {parallel.pipeline_schedule}",
                      "use 1f1b, or interleaved with vpp > 1")
    group, m = options.microbatch_group_size or parallel.pp, run.num_microbatches
    if parallel.vpp > 1 and (group < parallel.pp or 0 < m % group < parallel.pp):
        yield Problem(f"framework: megatron interleaves groups of {group} micro-batches over pp = "
                      f"{parallel.pp} stages, but a step has {m}: the last group is too small",
                      f"use a global_batch_size of a multiple of {max(group, parallel.pp)} micro-batches")
    if (parallel.dp * parallel.cp) % options.distributed_optimizer_instances:
        yield Problem(f"megatron.distributed_optimizer_instances = "
                      f"{options.distributed_optimizer_instances} does not divide dp x cp = "
                      f"{parallel.dp * parallel.cp}", "use a divisor")
    if parallel.cp > 1 and run.training.attention == "eager":
        yield Problem(f"framework: megatron divides sequences (cp = {parallel.cp}) with fused attention only",
                      "use attention: flash or cudnn")
    if parallel.cp > 1 and parallel.context_exchange != "ring":
        yield Problem(f"framework: megatron with context_exchange: {parallel.context_exchange} is not "
                      "modelled", "use context_exchange: ring (cp_comm_type p2p)")
    if options.use_precision_aware_optimizer and parallel.zero_stage != 1:
        yield Problem("megatron.use_precision_aware_optimizer needs the distributed optimizer, but "
                      f"zero_stage = {parallel.zero_stage}", "set zero_stage: 1")
    if options.defer_embedding_wgrad_compute and parallel.pp == 1:
        yield Problem("megatron.defer_embedding_wgrad_compute fills the bubble of a pipeline, but pp = 1",
                      "raise pp, or leave it out")
