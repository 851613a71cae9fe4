"""DeepSpeed's ZeRO stage 3, by hand; streams of all stages are compared by self_check.frameworks."""
from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuledger.config import Run, RunOptions, resolve_run
from gpuledger.config.frameworks import DeepSpeedOptions
from gpuledger.estimate import estimate
from gpuledger.memory.frameworks.modules import Module, module_chains
from gpuledger.memory.frameworks.stage3_coordinator import Coordinator
from gpuledger.memory.host import host_memory
from gpuledger.memory.peak import StepPeak
from gpuledger.program.device import Device
from gpuledger.program.tensor import Tensor
from gpuledger.report.estimate_json import memory
from gpuledger.report.estimate_table import estimate_table
from gpuledger.units import gib

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


def test_offloaded_bytes_by_hand() -> None:
    """Stage 3: masters and Adam 12 B, fp32 gradients 4 B, gradients 2 B, parameters 2 B of each part."""
    offload = '{"device": "cpu", "pin_memory": true}'
    run = resolved(f"deepspeed.offload_optimizer={offload}", f"deepspeed.offload_param={offload}")
    finder = StepPeak(run, Device())
    part = sum(-(-int(weight.numel) // RANKS) for weight in finder.weights)
    host = host_memory(run, finder.policy, finder.counted)
    assert host.pinned_bytes == (4 + 2 + 2) * part
    assert host.pageable_bytes == 12 * part
    assert host.node_bytes == RANKS * host.rank_bytes
    assert not [s for s in finder.states if s.category in ("parameters", "optimizer") and s.nbytes]


def test_offload_is_in_the_table_and_in_json() -> None:
    run = resolved('deepspeed.offload_optimizer={"device": "cpu"}', zero=2)
    found = estimate(run)
    assert "host memory: " in estimate_table(found)
    assert memory(found)["host_bytes"] == found.memory.host.rank_bytes > 12 * 124_439_808 // RANKS
    assert memory(found)["host_pinned_bytes"] == 0
    plain = estimate(resolved(zero=2))
    assert "host memory" not in estimate_table(plain)
    assert memory(plain)["host_bytes"] == 0


def test_a_checkpoint_has_masters_and_states() -> None:
    """2 B of weights, 4 B of masters and 8 B of Adam's states for each parameter, whoever divides them."""
    checkpoint = estimate(resolved()).checkpoint
    assert checkpoint.weights_bytes == 2 * 124_439_808
    assert checkpoint.full_bytes // 124_439_808 == 14


@pytest.mark.parametrize(("zero", "overlap"), [(2, "false"), (2, "true"), (3, "null")])
def test_default_buckets_can_make_a_higher_stage_need_more(zero: int, overlap: str) -> None:
    """The well-known surprise: a buffer of 1 GB, or two, beside a model of 0.1 GB."""
    keys = ("model.num_layers=2", f"deepspeed.overlap_comm={overlap}")
    found, undivided = estimate(resolved(*keys, zero=zero)), estimate(resolved(*keys[:1], zero=0))
    assert found.memory.peak_requested_bytes > undivided.memory.peak_requested_bytes
    warning = next(w for w in found.warnings if "reduce_bucket_size" in w)
    assert f"500,000,000 elements is more than the model's {found.parameters:,}" in warning
    assert (", twice with overlap_comm," in warning) == (overlap == "true")
    assert f"more than stage 0 with {gib(undivided.memory.peak_requested_bytes)}" in warning
    option = f"deepspeed.reduce_bucket_size={found.parameters}"
    assert option in warning
    smaller = estimate(resolved(*keys, option, zero=zero))
    saved = found.memory.peak_requested_bytes - smaller.memory.peak_requested_bytes
    assert f"saves {gib(saved)}" in warning
    assert not [w for w in smaller.warnings if "reduce_bucket_size" in w]


def test_a_large_model_is_not_warned_of_buckets() -> None:
    run = resolve_run("llama3-8b", RunOptions(gpu="h100", gpus=8, zero=3, global_batch=8, set=(
        "framework=deepspeed", "precision=bf16-master", "seq_len=64")))[0]
    assert not [w for w in estimate(run).warnings if "reduce_bucket_size" in w]


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
