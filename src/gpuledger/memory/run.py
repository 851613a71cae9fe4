"""Steps of a run as streams: one in steady state, or a whole run from an empty allocator."""
from __future__ import annotations

from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.program.model import Program
from gpuledger.program.tables import tables
from gpuledger.program.tensor import scratch

from .frameworks import policy_of
from .pipeline.runner import PipelineRunner, repeating_micro_batches, stage_order, stage_programs
from .policy import Policy
from .repeated import Repetitions
from .states import constants_of
from .step import RankRunner, StepRunner, batch
from .zero import UNDIVIDED


def steady_step(program: Program, training: Training, num_microbatches: int,
                policy: Policy = UNDIVIDED) -> StepRunner:
    """One step in steady state: what lives between steps is there, and not in the stream."""
    runner = policy.runner(program, training, num_microbatches)
    runner.start_steady()
    runner.memory.events.clear()
    runner.step()
    return runner


def rank_programs(run: Run, device: Device, stage: int = 0) -> list[Program]:
    """The programs of one rank of a pipeline stage: its model chunks, all layers."""
    return stage_programs(run, device, stage)


def whole_run(run: Run, programs: Program | list[Program], steps: int, stage: int = 0, *,
              abridged: bool = False) -> RankRunner:
    """Weights, tables, batch, then steps of one rank of a pipeline stage.

    The first step leaves optimizer states and cuBLAS workspaces behind. A rank makes only what it
    stores of the weights. abridged: what repeats is in the ledger once, and in `repetitions` how often.
    """
    programs = programs if isinstance(programs, list) else [programs]
    if run.parallel.framework == "megatron":
        from .frameworks.megatron.runner import megatron_run

        return megatron_run(run, programs, steps, stage)
    policy = policy_of(run.parallel)
    model, training = run.model, policy.computed(run.training)
    program, *more = programs
    device = program.tape.device
    workspaces = tuple(scratch(f"cuBLAS workspace ({thread})", device.cublas_workspace_bytes)
                       for thread in ("forward", "backward"))
    runner: StepRunner
    if run.parallel.pp > 1:
        order = stage_order(run, stage, repeating_micro_batches(run))
        runner = PipelineRunner(programs, training, order, workspaces, policy)
    else:
        runner = policy.runner(program, training, run.num_microbatches, workspaces)
    memory, weights = runner.memory, runner.program.weights
    made = [share.local.like(share.local.name)
            for share in policy.parameters([(weight, 1) for weight in weights])]
    # nn.Linear makes a weight of its own, before its bias and before it is tied.
    alone = model.tie_embeddings and not more and program.received is None and not program.sends
    untied = [program.weights[0].like("untied head")] if alone else []
    place = len(made) - model.bias.head
    for tensor in (*made[:place], *untied, *made[place:]):
        memory.allocate(tensor, "parameters")
    for tensor in untied:
        memory.drop_tensor(tensor)
    local_model, local_training = constants_of(run.model_copy(update={"training": training}))
    for table in tables(local_model, local_training):
        memory.allocate(table)
    for master in runner.masters or ():
        memory.allocate(master, "optimizer")
    for kept in policy.kept(weights, training):
        for tensor in kept.tensors:
            memory.allocate(tensor, kept.category)
    for tensor in batch(local_training):
        memory.allocate(tensor)
    if abridged:
        runner.repetitions = Repetitions(memory)
    for step in range(steps):
        runner.step(first=step == 0)
    return runner
