"""Which nn.Module calls an operator runs inside: the module tree of the reference model.

A program's parts are Python calls, and not every call is a module's. Frameworks that hook modules
(DeepSpeed's stage 3) need to know where each module begins and ends, forward and backward.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuledger.program.model import Program
from gpuledger.program.program import Op, Part
from gpuledger.program.tensor import Tensor

from ..autograd import Buffer
from ..group_timeline import GroupTimeline
from ..schedule import Step

HEADS = ("query", "key")                 # projections that a module of their own splits into heads


@dataclass(eq=False)
class Module:
    """A called nn.Module.

    weights: its own parameters, not its children's; outputs: tensors that it returns; receives
    gradients: it has an input whose gradient its backward forms.
    """

    name: str
    weights: tuple[Tensor, ...] = ()
    outputs: int = 1
    has_input_gradient: bool = True

    def __repr__(self) -> str:
        return f"Module({self.name})"


Chain = tuple[Module, ...]               # the outermost module first


def module_chains(program: Program) -> dict[Op, Chain]:
    """The modules around each operator of the program."""
    root = Module("model", has_input_gradient=False)
    chains: dict[Op, Chain] = {}
    for item in program.root.body:
        if isinstance(item, Op):
            chains[item] = (root,)
            continue
        fed = item.name != "embedding"
        for op, inner in inside(item, Module(item.name, has_input_gradient=fed)):
            chains[op] = (root, *inner)
    return chains


def inside(part: Part, module: Module) -> Iterator[tuple[Op, Chain]]:
    """(operator, chain from `module` on) for each operator of a module's part."""
    projection = Module("project", outputs=3)
    heads = {name: Module(f"{name} heads") for name in HEADS}
    last = max((place for place, item in enumerate(part.body) if item.name == "value heads"), default=-1)
    for place, item in enumerate(part.body):
        around: Chain = (module,)
        if place <= last:
            around = (module, projection)
            for name in HEADS:
                if item.name in (f"{name} norm", f"{name} in heads", f"{name} heads"):
                    around = (module, projection, heads[name])
        if isinstance(item, Part) and item.name in ("attention", "mlp"):
            for op, inner in inside(item, Module(item.name)):
                yield op, (module, *inner)
            continue
        ops = list(item.ops()) if isinstance(item, Part) else [item]
        weights = tuple(dict.fromkeys(t for op in ops for t in op.reads if t.parameter))
        if weights:
            fed = module.has_input_gradient
            around = (*around, Module(item.name, weights, has_input_gradient=fed))
        for op in ops:
            yield op, around


class ModuleTimeline(GroupTimeline):
    """Calls a hook where a module begins and ends, as DeepSpeed's stage 3 hooks it.

    Backward, a module begins with its last operator, once for each tensor that it returned, and ends
    after its first one where an input of it has a gradient. A checkpoint that runs a module again
    stops inside it: it does not end then.
    """

    def __init__(self, program: Program, chains: dict[Op, Chain], workspaces: Iterable[Tensor] = ()):
        super().__init__(program, workspaces)
        self.chains = chains
        self.chain: Chain = ()
        self.made_in = {tensor: chain for op, chain in self.chains.items() for tensor in op.writes}
        self.received: dict[Module, dict[Tensor, Buffer]] = {}

    def pre_forward(self, module: Module) -> None:
        """Before a module's forward."""

    def post_forward(self, module: Module) -> None:
        """After it."""

    def pre_backward(self, module: Module) -> None:
        """A gradient of one of its outputs is there."""

    def post_backward(self, module: Module) -> None:
        """The gradients of its inputs are formed."""

    def enter(self, step: Step) -> None:
        super().enter(step)
        if not self.in_backward and step.op in self.chains:
            self.move_forward(self.chains[step.op])

    def reach(self, step: Step) -> None:
        if step.op in self.chains:
            self.move_backward(self.chains[step.op])

    def move_forward(self, chain: Chain) -> None:
        """Leave the modules that are over, the innermost first; enter the new ones."""
        shared = common(self.chain, chain)
        for module in reversed(self.chain[shared:]):
            self.post_forward(module)
        for module in chain[shared:]:
            self.pre_forward(module)
        self.chain = chain

    def move_backward(self, chain: Chain) -> None:
        """The same backward."""
        shared = common(self.chain, chain)
        for module in reversed(self.chain[shared:]):
            if module.has_input_gradient:
                self.hand_out(module)
                self.post_backward(module)
        for module in chain[shared:]:
            for _ in range(module.outputs):
                self.pre_backward(module)
        self.chain = chain

    def accumulate(self, tensor: Tensor, new: Buffer) -> None:
        """Gradients of a module's input add up in the module's own node first."""
        self.accumulate_in(self.chain, tensor, new)

    def accumulate_in(self, chain: Chain, tensor: Tensor, new: Buffer) -> None:
        """The innermost module of the chain that has been given the tensor receives it."""
        around = chain[common(chain, self.made_in[tensor]):] if tensor in self.made_in else ()
        if around and around[-1].has_input_gradient:
            self.add_to(self.received.setdefault(around[-1], {}), tensor, new)
        else:
            super().accumulate(tensor, new)

    def hand_out(self, module: Module) -> None:
        """The module's inputs have all of their gradient."""
        around = self.chain[:self.chain.index(module)]
        for tensor, buffer in self.received.pop(module, {}).items():
            self.accumulate_in(around, tensor, buffer)

    def end_forward(self) -> None:
        self.move_forward(())
        super().end_forward()

    def end_backward(self) -> None:
        self.move_backward(())
        super().end_backward()

    def recompute(self, region: Part) -> None:
        """A block's modules run again; they are not left where the checkpoint stops."""
        before = self.chain
        if region.layer is not None:
            self.chain = before[:1]
        super().recompute(region)
        self.chain = before

    def run_again(self, step: Step) -> None:
        if step.region is None or step.region.layer is not None:
            self.move_forward(self.chains[step.op])


def common(one: Chain, other: Chain) -> int:
    """How many modules both begin with."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a is not b),
                min(len(one), len(other)))
