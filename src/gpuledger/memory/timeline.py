"""Walk a program forward and backward: the ordered allocations and frees of one training step.

The holders of a storage are Python (see schedule), the autograd nodes that saved it (until their
backward ran), gradient buffers, a checkpoint (its arguments), and `.grad`. No operator is known by
name here.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpuledger.program.model import Program
from gpuledger.program.program import Op, Part
from gpuledger.program.tensor import Tensor

from .autograd import Autograd, Buffer, Deferred
from .ledger import Memory
from .schedule import Step, schedule


class Timeline(Autograd):
    """Memory of a step of `program`; `grads` outlive a micro-batch, everything else does not.

    workspaces: cuBLAS's, forward's and backward's, taken at the first product of each thread.
    """

    def __init__(self, program: Program, workspaces: Iterable[Tensor] = ()):
        self.program = program
        self.memory = Memory()
        self.steps = schedule(program.root)
        if program.loss_scaling is not None:             # after autocast; the result is no variable
            self.steps.append(Step(program.loss_scaling, None, None, None, []))
        self.uses = Counter(t for step in self.steps for t in step.op.gradients if t.parameter)
        self.grads: dict[Tensor, int] = {}
        self.in_backward = False
        self.workspaces = dict(zip((False, True), workspaces, strict=False))
        self.kept_by_caller = {program.loss, program.logits}
        self.keeps_output = not program.sends            # a stage's output is freed once it is sent
        self.split = False                               # weight gradients wait for `weight_pass`
        self.scaler_state: list[Tensor] = []             # made when the first loss is scaled
        # (number of events, instant that begins there)
        self.marks: list[tuple[int, str]] = []
        self.last_micro_batch = True                     # of its step

    def mark(self, instant: str) -> None:
        self.marks.append((len(self.memory.events), instant))

    def micro_batch(self) -> None:
        """Forward, backward, and the caller's `del loss`."""
        self.forward_pass()
        self.backward_pass()

    def forward_pass(self) -> None:
        """From the batch, or a received activation, to the loss, or an output that is sent."""
        self.saved: dict[Op, list[int]] = {}
        self.pending: dict[Tensor, Buffer] = {}          # gradient buffers
        self.missing = Counter(self.uses)
        self.checkpoints: dict[Part, list[int]] = {}
        self.recomputed: set[Part] = set()
        self.kept: dict[Part, dict[Op, list[int]]] = {}  # outputs, by checkpoint per operator
        self.deferred: list[Deferred] = []
        self.mark("forward")
        self.before_forward()
        if self.program.received is not None:
            self.receive(self.program.received)
        for step in self.steps:
            self.enter(step)
            if step.region and step.region not in self.checkpoints:
                waits_here = () if step.region.offloads else step.region.arguments
                self.checkpoints[step.region] = self.memory.hold_all(waits_here)
                self.kept[step.region] = {op: [] for op in step.region.kept_ops()}
            if step.op is self.program.loss_scaling:
                self.memory.play((+tensor for tensor in self.scaler_state), "optimizer")
                self.scaler_state.clear()
            self.forward(step, saving=not step.region)
        self.end_forward()
        if not self.keeps_output:
            self.memory.drop_tensor(self.program.loss)

    def before_forward(self) -> None:
        """What a framework does to begin a forward pass, and the module does not."""

    def receive(self, activation: Tensor) -> None:
        """The buffer into which the stage before sends."""
        self.memory.allocate(activation)

    def backward_pass(self) -> None:
        """From the loss's gradient, or a received one, to the parameters and what is sent back."""
        self.mark("backward")
        self.backward()
        self.leave()
        self.send_back()
        if self.program.loss_scaling is not None:
            self.memory.drop_tensor(self.program.backward_from)
        if self.program.logits is not None:
            self.memory.drop_tensor(self.program.logits)
        if self.keeps_output:
            self.memory.drop_tensor(self.program.loss)

    def send_back(self) -> None:
        """The gradient of the received activation goes to the stage before; both are freed."""
        received = self.program.received
        if received is not None:
            if received in self.pending:
                self.memory.drop(self.pending.pop(received).number)
            self.memory.drop_tensor(received)

    def weight_pass(self) -> None:
        """The weight gradients that a split backward left to do."""
        self.mark("weight gradients")
        for deferred in self.deferred:
            self.enter(deferred.step)
            for tensor in deferred.weights:
                number = self.memory.allocate(tensor.gradient())
                self.outgoing = {tensor: Buffer(number, is_view=False)}
                self.hand_over()
            self.memory.drop(*deferred.held)
        self.deferred = []
        for step in reversed(self.steps):                # copies that autocast made of weights
            if any(t in self.pending for t in step.op.writes):
                self.enter(step)
                self.differentiate(step)
                self.hand_over()
        self.leave()

    def enter(self, step: Step) -> None:
        """Before an operator runs, forward or backward."""
        self.memory.layer = step.layer

    def end_forward(self) -> None:
        """After the last operator of the forward pass."""

    def end_backward(self) -> None:
        """After the last node of the backward pass, before the caller's backward() returns."""

    def leave(self) -> None:
        """After the last operator of a micro-batch."""
        self.memory.layer = None

    # ---- forward
    def forward(self, step: Step, *, saving: bool) -> None:
        if not step.op.only_recomputed:
            self.run(step.op, saving=saving)
        if step.region and step.op in self.kept[step.region]:
            outputs = [t for t in step.op.writes if t.view_of is None]
            self.kept[step.region][step.op] = self.memory.hold_all(outputs)
        self.release(step.releases)

    def run(self, op: Op, *, saving: bool) -> None:
        memory = self.memory
        memory.play(op.forward_moves)
        if op.product:
            self.take_workspace()
        for tensor in op.writes:
            if tensor.view_of is not None:
                number = memory.current.get(tensor.storage)
                if number is not None:
                    memory.holders[number] += 1
        if saving and op.gradients:
            self.save(op)

    def save(self, op: Op) -> None:
        """The node holds what its backward needs."""
        self.saved[op] = self.memory.hold_all(op.saves)

    def release(self, tensors: Iterable[Tensor]) -> None:
        """Python lets go; the loss (and logits, where they are kept) stay with the caller."""
        memory, kept = self.memory, self.kept_by_caller
        for tensor in tensors:
            number = memory.current.get(tensor.storage)
            if number is not None and tensor not in kept:
                memory.drop(number)

    def recompute(self, region: Part) -> None:
        """Run the part again up to the last tensor that a node wants; then its frames unwind.

        An input is saved before its operator runs, so an operator that saves only inputs is not
        run. Ref: torch/utils/checkpoint.py (early stop). Kept outputs that are not asked for live
        as long as the checkpoint.
        """
        self.recomputed.add(region)
        copies = [self.memory.allocate(t.like(f"{t.name} from the host"), "activations")
                  for t in region.arguments if region.offloads]
        for argument, copy in zip(region.arguments, copies, strict=False):
            self.memory.current[argument.storage] = copy
        kept = self.kept.pop(region)
        steps = schedule(region)
        last = max(i for i, step in enumerate(steps) if step.op.saves)
        for step in steps[:last]:
            self.run_again(step)
            self.run_or_take(step.op, kept)
            self.release(step.releases)
        ran, final = [step.op for step in steps[:last]], steps[last].op
        self.run_again(steps[last])
        if final.saves_an_output:
            ran.append(final)
            self.run_or_take(final, kept)
        else:
            self.save(final)
        self.checkpoints[region] += [number for numbers in kept.values() for number in numbers]
        written = {t for op in ran for t in op.writes}
        self.release(t for step in steps[last:] for t in step.releases if t in written)
        self.memory.drop(*copies)

    def run_or_take(self, op: Op, kept: dict[Op, list[int]]) -> None:
        """The operator, or its kept outputs in its place: then they are the caller's."""
        if op not in kept:
            self.run(op, saving=not op.only_recomputed)
            return
        del kept[op]
        if op.gradients:
            self.saved[op] = self.memory.hold_all(op.saves)

    def reach(self, step: Step) -> None:
        """Before it is asked whether an operator has a gradient to hand back."""

    def run_again(self, step: Step) -> None:
        """Before a checkpoint's operator runs again; the last one only begins to."""

    # ---- backward
    def backward(self) -> None:
        memory, loss = self.memory, self.program.backward_from
        self.in_backward = True
        seed = self.first_gradient(loss)
        self.pending[loss] = Buffer(memory.hold(seed), is_view=False)
        # who unpacks last
        ends = {step.region: step.op for step in reversed(self.steps) if step.op.saves}
        for step in reversed(self.steps):
            op, region = step.op, step.region
            self.reach(step)
            if op.only_recomputed or not any(t in self.pending for t in op.writes):
                continue
            self.enter(step)
            if region and op.saves and region not in self.recomputed:
                self.recompute(region)
            self.differentiate(step)
            if region and ends[region] is op:
                memory.drop(*self.checkpoints[region])
            self.hand_over()
        self.in_backward = False
        self.end_backward()
        memory.drop(seed)

    def first_gradient(self, loss: Tensor) -> int:
        """That of the loss, or the one that the next stage sends; held until the backward pass ends."""
        return self.memory.allocate(loss.gradient())
