"""A whole optimizer step, and a whole run from an empty allocator, as streams of allocations and frees."""
from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.model import Model
from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.program.model import Program
from gpuledger.program.precision import PRECISIONS
from gpuledger.program.tensor import Tensor, scratch

from .gradients import LossScaler, clip
from .optimizer_step import OptimizerStep
from .zero import UNDIVIDED, Division, ZeroTimeline


class StepRunner:
    """Runs steps of one program on one ledger, on one of the ranks of `division`."""

    def __init__(self, program: Program, training: Training, num_microbatches: int,
                 workspaces: tuple[Tensor, ...] = (), division: Division = UNDIVIDED):
        self.program, self.training, self.num_microbatches = program, training, num_microbatches
        self.timeline = ZeroTimeline(program, division, workspaces)
        self.memory = self.timeline.memory
        precision = PRECISIONS[training.precision]
        updated = [division.part(w, 1) for w in program.weights]
        self.gradients = [division.part(w, 2) for w in program.weights]
        self.masters = ([w.like(w.name, precision.master_dtype) for w in updated]
                        if precision.master_dtype else None)
        self.optimizer = OptimizerStep(self.memory, self.masters or updated, training,
                                       program.tape.device)
        self.scaler = (LossScaler(fused=training.optimizer_implementation == "fused")
                       if precision.loss_scaling else None)

    def step(self, *, first: bool = False) -> None:
        """Micro-batches, the update, zero_grad."""
        for _ in range(self.num_microbatches):
            self.timeline.micro_batch()
        self.timeline.mark("optimizer step")
        self.update(first=first)
        self.timeline.mark("zero grad")
        if self.training.set_to_none:
            grads = self.timeline.grads
            self.memory.drop(*(grads.pop(w) for w in self.program.weights if w in grads))

    def update(self, *, first: bool) -> None:
        """Unscale, clip and step, as the run asks."""
        if self.training.gradient_clipping:
            if self.scaler:
                self.memory.play(self.scaler.unscale(), "optimizer")
            self.memory.play(clip(self.gradients), "optimizer")
        if self.scaler:
            self.memory.play(self.scaler.before_step(), "optimizer")
        self.optimizer_step(first=first)
        if self.scaler:
            self.memory.play(self.scaler.after_step(), "optimizer")

    def optimizer_step(self, *, first: bool) -> None:
        """With separate masters, fp32 gradients live from here to the end of the step."""
        memory = self.memory
        gradients = [memory.allocate(m.like("fp32 gradient"), "gradients") for m in self.masters or ()]
        self.optimizer.step(first=first)
        memory.drop(*gradients)


def steady_step(program: Program, training: Training, num_microbatches: int) -> StepRunner:
    """One step in steady state: parameters, states and workspaces are there already, and not in the stream."""
    runner = StepRunner(program, training, num_microbatches)
    if not training.set_to_none:
        for weight in program.weights:
            runner.timeline.grads[weight] = runner.memory.allocate(weight.gradient())
        runner.memory.events.clear()
    runner.step()
    return runner


def whole_run(run: Run, program: Program, steps: int) -> StepRunner:
    """Weights, tables, batch, then steps; the first leaves optimizer states and cuBLAS workspaces behind.

    With ZeRO stage 3 each rank makes its part of the weights only.
    """
    model, training = run.model, run.training
    device = program.tape.device
    workspaces = tuple(scratch(f"cuBLAS workspace ({thread})", device.cublas_workspace_bytes)
                       for thread in ("forward", "backward"))
    division = Division(run.parallel.zero_stage, run.parallel.dp)
    runner = StepRunner(program, training, run.num_microbatches, workspaces, division)
    memory = runner.memory
    for weight in program.weights:
        memory.allocate(division.part(weight, 3).like(weight.name), "parameters")
    if model.tie_embeddings:                 # nn.Linear made a weight of its own before it was tied
        memory.drop(memory.allocate(program.weights[0].like("untied head"), "parameters"))
    for table in tables(model, training):
        memory.allocate(table)
    for master in runner.masters or ():
        memory.allocate(master, "optimizer")
    for tensor in batch(training):
        memory.allocate(tensor)
    for step in range(steps):
        runner.step(first=step == 0)
    return runner


def tables(model: Model, training: Training) -> Iterator[Tensor]:
    """Constant tensors that the forward pass reads, in the order in which the model makes them. [S14]"""
    s = training.seq_len
    precision = PRECISIONS[training.precision]
    windowed = model.sliding_window is not None and s > model.sliding_window
    if model.positions == "learned":
        yield Tensor("positions", (s,), "int64", "table")
    if model.positions == "rotary":
        shape = (s, model.rotary_dim or model.head_dim)
        yield Tensor("cos", shape, precision.weight_dtype, "table")
        yield Tensor("sin", shape, precision.weight_dtype, "table")
    if model.positions == "alibi":
        yield Tensor("alibi", (model.num_heads, s, s), precision.compute_dtype, "table")
    if training.attention == "eager":
        yield Tensor("causal mask", (s, s), "bool", "table")
        if windowed:
            yield Tensor("window mask", (s, s), "bool", "table")
    elif windowed and training.attention != "flash":
        yield Tensor("visible window", (s, s), "bool", "table")


def batch(training: Training) -> tuple[Tensor, Tensor]:
    """Tokens and targets (b, s)."""
    shape = (training.micro_batch_size, training.seq_len)
    return Tensor("tokens", shape, "int64", "table"), Tensor("targets", shape, "int64", "table")


