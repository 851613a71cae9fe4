"""DeepSpeed's ZeRO stage 3, by hand; streams of all stages are compared by self_check.frameworks."""
from __future__ import annotations

from collections.abc import Sequence

from gpuledger.config import Run, RunOptions, resolve_run
from gpuledger.config.frameworks import DeepSpeedOptions
from gpuledger.memory.frameworks.modules import Module, module_chains
from gpuledger.memory.frameworks.stage3_coordinator import Coordinator
from gpuledger.memory.peak import StepPeak
from gpuledger.program.device import Device
from gpuledger.program.tensor import Tensor

RANKS = 8


def resolved(*keys: str, zero: int = 3) -> Run:
    return resolve_run("gpt2", RunOptions(gpu="h100", gpus=RANKS, zero=zero, global_batch=RANKS, set=(
        "framework=deepspeed", "precision=bf16-master", "seq_len=64", *keys)))[0]


def test_stage3_states_by_hand() -> None:
    """Each rank stores ceil(numel / N) elements of each parameter, and the ipg buffer all the time."""
    finder = StepPeak(resolved(), Device())
    part = sum(-(-int(weight.numel) // RANKS) for weight in finder.weights)
    states = {state.name: state.nbytes for state in finder.states}
    assert states["parameters"] == 2 * part
    assert states["fp32 master weights"] == 4 * part
    assert states["gradient partitions"] == 2 * part
    assert states["ipg buffer"] == 2 * 500_000_000


def test_sub_groups_end_with_the_parameter_that_fills_them() -> None:
    finder = StepPeak(resolved("deepspeed.sub_group_size=10000000"), Device())
    masters = next(s for s in finder.states if s.name == "fp32 master weights")
    parts = [-(-int(weight.numel) // RANKS) for weight in finder.weights]
    groups, filled = 1, 0
    for part in parts:
        if filled >= 10_000_000:
            groups, filled = groups + 1, 0
        filled += part
    assert masters.count == groups == 2


class Record:
    """What the coordinator asks for, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def gather(self, weights: Sequence[Tensor]) -> None:
        self.asked.append("gather " + " ".join(weight.name for weight in weights))

    def wait(self, weight: Tensor) -> None:
        self.asked.append(f"wait {weight.name}")

    def free(self, weight: Tensor) -> None:
        self.asked.append(f"free {weight.name}")


def forward_and_backward(**options: int) -> list[str]:
    """Three modules of ten elements each, forward and backward."""
    modules = [Module(name, (Tensor(name, (10,), "bfloat16", "parameter"),)) for name in "abc"]
    given = DeepSpeedOptions.model_validate({"stage3_param_persistence_threshold": 0} | options)
    coordinator = Coordinator([*modules, *modules[::-1]], [m.weights[0] for m in modules], given)
    coordinator.storage = record = Record()
    for module in modules:
        coordinator.fetch(module, forward=True)
        coordinator.release(module, forward=True)
    for module in reversed(modules):
        coordinator.fetch(module, forward=False)
        coordinator.release(module, forward=False)
    return record.asked


def test_no_prefetch_and_no_reuse_gathers_each_module_when_it_runs() -> None:
    asked = forward_and_backward(stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=0)
    assert asked == [f"{what} {name}" for name in "abccba" for what in ("gather", "wait", "free")]


def test_a_module_used_again_soon_stays() -> None:
    """With a distance of ten elements the last module's parameter lives on to its backward."""
    asked = forward_and_backward(stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=10)
    assert asked.count("gather c") == 1
    assert asked.count("gather a") == 2


def test_a_large_prefetch_bucket_gathers_the_rest_at_once() -> None:
    asked = forward_and_backward(stage3_prefetch_bucket_size=1000)
    assert asked[:3] == ["gather a", "wait a", "gather b c"]


def test_live_parameters_limit_the_prefetch() -> None:
    asked = forward_and_backward(stage3_prefetch_bucket_size=1000, stage3_max_live_parameters=20)
    assert asked[:3] == ["gather a", "wait a", "gather b"]


def test_persistent_parameters_are_never_freed() -> None:
    asked = forward_and_backward(stage3_param_persistence_threshold=10)
    assert not [what for what in asked if what.startswith("free")]


def test_every_operator_belongs_to_a_chain_of_modules() -> None:
    """Each parameter is a module's own, and a linear lies in the modules around it."""
    program = StepPeak(resolved(), Device()).program
    chains = module_chains(program)
    assert set(chains) == set(program.root.ops())
    owned = {weight for chain in chains.values() for module in chain for weight in module.weights}
    assert owned == set(program.weights)
    names = {tuple(m.name for m in chain) for chain in chains.values()}
    assert ("model", "block 0", "attention", "project", "qkv") in names
    assert ("model", "embedding", "token") in names
