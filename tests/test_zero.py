"""What ZeRO divides: identities, and integers by hand."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_runs import on_ranks, random_run
from gpuledger.config import RunOptions, resolve_run
from gpuledger.errors import NotYetError
from gpuledger.memory.peak import StepPeak
from gpuledger.memory.states import State, model_states
from gpuledger.memory.zero import UNDIVIDED, Division
from gpuledger.program.device import Device
from gpuledger.program.tensor import Tensor

SHAPES = st.lists(st.one_of(st.tuples(st.integers(1, 700)),
                            st.tuples(st.integers(1, 90), st.integers(1, 90))), min_size=1, max_size=8)


def training(seed: int = 5, **settings: object):
    return random_run(seed, **{"training__optimizer": "adamw", "training__amsgrad": False,
                               "training__momentum": 0.0, **settings}).training


@given(SHAPES, st.integers(1, 513), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_ranks_sum_to_the_whole_plus_named_padding(shapes, dp, stage) -> None:
    weights = [(Tensor(f"w{i}", shape, "float32", "parameter"), 1 + i % 3)
               for i, shape in enumerate(shapes)]
    how = training(training__optimizer_implementation="foreach", training__precision="fp32")
    whole = model_states(weights, how, UNDIVIDED)
    divided = model_states(weights, how, Division(stage, dp))
    for one, part in zip(whole, divided, strict=True):
        shards = dp if stage >= (3 if one.category == "parameters" else 1) else 1
        assert part.nbytes * shards == one.nbytes + part.padding_bytes, one.name


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_one_rank_divides_nothing(seed: int, stage: int) -> None:
    run = random_run(seed, training__optimizer="adamw", training__momentum=0.0)
    base = StepPeak(run, Device()).find()
    alone = StepPeak(on_ranks(run, 1, stage), Device()).find()
    assert alone == base


def test_states_of_llama_2_7b_by_hand() -> None:
    """6,738,415,616 parameters: 4 B each of parameters and of two moments, over 8 ranks without padding."""
    n = 6_738_415_616
    run, _ = resolve_run("llama-2-7b", RunOptions(gpu="h100", gpus=8, zero=3, global_batch=8))
    states = {s.name: s for s in StepPeak(run, Device()).states}
    assert states["parameters"].nbytes == 4 * n // 8 == 3_369_207_808
    assert states["exp_avg"].nbytes == states["exp_avg_sq"].nbytes == 4 * n // 8
    assert all(s.padding_bytes == 0 for s in states.values())


def test_padding_of_an_odd_tensor() -> None:
    """10 elements over 4 ranks: 3 each, 2 of padding."""
    weight = Tensor("w", (10,), "float32", "parameter")
    division = Division(3, 4)
    assert division.part(weight, 3).shape == (3,)
    assert division.padding_bytes(weight, 3) == 8


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_more_ranks_never_need_more(stage: int) -> None:
    run = random_run(2, training__optimizer="adamw", training__momentum=0.0)
    peaks = [StepPeak(on_ranks(run, dp, stage), Device()).find().requested_bytes for dp in (2, 4, 16, 64)]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("optimizer", ["adafactor", "muon"])
def test_whole_matrix_optimizers_are_refused_under_zero(optimizer: str) -> None:
    run = on_ranks(random_run(1, training__optimizer=optimizer, training__amsgrad=False, training__momentum=0.0,
                              training__optimizer_implementation="for-loop"), 4, 1)
    with pytest.raises(NotYetError, match=f"optimizer {optimizer}"):
        StepPeak(run, Device()).find()


STATE_BYTES_PER_PARAMETER = [
    ("fp32", "adamw", 4 + 8), ("bf16-mixed", "adamw", 4 + 8), ("bf16", "adamw", 2 + 4),
    ("bf16-master", "adamw", 2 + 4 + 8), ("fp32", "sgd", 4 + 4), ("bf16", "lion", 2 + 2),
    ("bf16-master", "lion", 2 + 4 + 4)]


@pytest.mark.parametrize(("precision", "optimizer", "per_parameter"), STATE_BYTES_PER_PARAMETER)
def test_bytes_per_parameter(precision: str, optimizer: str, per_parameter: int) -> None:
    dtype = "bfloat16" if precision in ("bf16", "bf16-master") else "float32"
    weights = [(Tensor("w", (30, 40), dtype, "parameter"), 1)]
    how = training(training__precision=precision, training__optimizer=optimizer,
                   training__momentum=0.9 if optimizer == "sgd" else 0.0,
                   training__attention="eager",
                   training__optimizer_implementation="for-loop")
    states: list[State] = model_states(weights, how, UNDIVIDED)
    assert sum(s.nbytes for s in states) == per_parameter * 1200
