"""The policy of Megatron-LM: its own modules, weights that every rank of a stage has whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuledger.config.parallelism import Parallelism
from gpuledger.config.run import Run
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

    def build(self, run: Run, device: Device, part: Stage, num_layers: int | None = None) -> Program:
        return build_megatron(run, device, part, num_layers)

    def timeline(self, program: Program, workspaces: Iterable[Tensor] = ()) -> MegatronTimeline:
        return MegatronTimeline(program, workspaces)

    def updated(self, weights: Counted) -> list[Share]:
        return []

    def clip(self, gradients: Sequence[Tensor]) -> Moves:
        """On the main gradients, in scalars."""
        return iter(())


def unmodelled_megatron(run: Run) -> Iterator[Problem]:
    """What Megatron does not do, or has no account."""
    training, model, parallel = run.training, run.model, run.parallel
    if training.precision != "bf16-master":
        yield Problem(f"framework: megatron trains 16-bit weights with fp32 masters, not {training.precision}",
                      "set precision: bf16-master (and megatron.params_dtype: float16 for --fp16)")
    if training.optimizer not in ("adam", "adamw"):
        yield Problem(f"framework: megatron with optimizer {training.optimizer} is not modelled",
                      "use optimizer: adamw")
    if training.attention not in ATTENTION:
        yield Problem(f"framework: megatron has no attention: {training.attention}",
                      "use flash, cudnn (its fused backend) or eager (unfused)")
    if training.loss != "cross_entropy":
        yield Problem(f"framework: megatron has its own loss, not {training.loss}",
                      "use loss: cross_entropy, perhaps with megatron.cross_entropy_loss_fusion")
    if parallel.model_parallel == "torch":
        yield Problem("framework: megatron has its own tensor parallelism", "leave model_parallel out")
    if (model.norm_position != "pre" or model.parallel_residual or model.attention_softcap
            or model.logits_softcap or model.sliding_window or model.positions == "alibi"
            or model.embedding_norm or model.embedding_scale or model.qk_norm == "full"):
        yield Problem("framework: megatron is modelled for blocks with norms before each sublayer and "
                      "without soft caps, windows, ALiBi and norms of the embedding",
                      "leave framework out: Megatron's tensor parallelism without its buffers")
    if (parallel.dp * parallel.cp) % parallel.megatron.distributed_optimizer_instances:
        yield Problem(f"megatron.distributed_optimizer_instances = "
                      f"{parallel.megatron.distributed_optimizer_instances} does not divide dp x cp = "
                      f"{parallel.dp * parallel.cp}", "use a divisor")
