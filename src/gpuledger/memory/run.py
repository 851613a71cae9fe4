"""Steps of a run as streams: one in steady state, or a whole run from an empty allocator."""
from __future__ import annotations

from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.program.model import Program
from gpuledger.program.tables import tables
from gpuledger.program.tensor import scratch

from .frameworks import policy_of
from .policy import Policy
from .step import StepRunner, batch
from .zero import UNDIVIDED


def steady_step(program: Program, training: Training, num_microbatches: int,
                policy: Policy = UNDIVIDED) -> StepRunner:
    """One step in steady state: what lives between steps is there, and not in the stream."""
    runner = policy.runner(program, training, num_microbatches)
    if not training.set_to_none:
        runner.timeline.earlier_gradients(kept=True)
        runner.memory.events.clear()
    runner.step()
    return runner


def whole_run(run: Run, program: Program, steps: int) -> StepRunner:
    """Weights, tables, batch, then steps.

    The first step leaves optimizer states and cuBLAS workspaces behind. A rank makes only what it
    stores of the weights.
    """
    policy = policy_of(run.parallel)
    model, training = run.model, policy.computed(run.training)
    device = program.tape.device
    workspaces = tuple(scratch(f"cuBLAS workspace ({thread})", device.cublas_workspace_bytes)
                       for thread in ("forward", "backward"))
    runner = policy.runner(program, training, run.num_microbatches, workspaces)
    memory = runner.memory
    made = [share.local.like(share.local.name)
            for share in policy.parameters([(weight, 1) for weight in program.weights])]
    # nn.Linear makes a weight of its own, before its bias and before it is tied.
    untied = [program.weights[0].like("untied head")] if model.tie_embeddings else []
    place = len(made) - model.bias.head
    for tensor in (*made[:place], *untied, *made[place:]):
        memory.allocate(tensor, "parameters")
    for tensor in untied:
        memory.drop_tensor(tensor)
    for table in tables(model, training):
        memory.allocate(table)
    for master in runner.masters or ():
        memory.allocate(master, "optimizer")
    for kept in policy.kept(program.weights, training):
        for tensor in kept.tensors:
            memory.allocate(tensor, kept.category)
    for tensor in batch(training):
        memory.allocate(tensor)
    for step in range(steps):
        runner.step(first=step == 0)
    return runner
