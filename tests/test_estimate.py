"""`estimate`: integers by hand, what adds up, what is refused."""
from __future__ import annotations

import pytest

from drawn_runs import on_ranks, random_run, with_settings
from gpuledger.advice import advise, changed
from gpuledger.config import Run, RunOptions, load_model, resolve_run
from gpuledger.errors import NotYetError
from gpuledger.estimate import CATEGORIES, Estimate, estimate
from gpuledger.memory.peak import StepPeak
from gpuledger.program.device import Device


def resolved(source: str, *settings: str, **options: object) -> Run:
    options.setdefault("gpus", 1)
    return resolve_run(source, RunOptions(gpu="h100", set=settings, **options))[0]


def test_gpt2_in_fp32_by_hand() -> None:
    """124,439,808 parameters of 4 B, two moments of 4 B, gradients of 4 B; sqrt(v) once more in the update."""
    run = resolved("gpt2", "precision=fp32", "attention=efficient", "seq_len=16")
    peak = StepPeak(run, Device()).find()
    n = 124_439_808
    assert peak.instant == "optimizer step"
    assert peak.category_bytes("parameters") == 4 * n == 497_759_232
    assert peak.category_bytes("gradients") == 4 * n
    assert peak.category_bytes("optimizer") == 3 * 4 * n
    workspaces, batch, positions = 2 * 33_554_432, 2 * 16 * 8, 16 * 8
    assert peak.category_bytes("buffers") == workspaces + batch + positions
    assert peak.category_bytes("activations") == 0


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_categories_add_up_to_the_allocated_peak(seed: int, replay: bool) -> None:
    memory = estimate(random_run(seed), replay=replay).memory
    assert set(memory.category_bytes) == set(CATEGORIES)
    assert sum(memory.category_bytes.values()) == memory.peak_allocated_bytes
    assert memory.peak_allocated_bytes >= memory.peak_requested_bytes
    if replay:
        assert memory.peak_reserved_bytes >= memory.peak_allocated_bytes


@pytest.mark.parametrize("seed", range(8))
def test_peak_of_one_step_is_the_peak_of_the_run(seed: int) -> None:
    """Layers once, without the first step, against all layers over three steps."""
    from gpuledger.memory.replayed import replay_run

    run = random_run(seed, model__num_layers=9)
    assert replay_run(run, Device()).peak_requested_bytes == StepPeak(run, Device()).find().requested_bytes


def test_gradients_of_zero_2_are_divided() -> None:
    """At the embedding's backward: the tied weight's two gradients and their sum whole, an eighth of all others."""
    run = resolved("gpt2", "precision=fp32", "attention=efficient", "seq_len=16", gpus=8, zero=2, global_batch=8)
    peak = StepPeak(run, Device()).find()
    token = 50_257 * 768
    assert peak.instant == "backward, embedding: token"
    assert peak.category_bytes("gradients") == 4 * (3 * token + (124_439_808 - token) // 8) == 506_089_728
    assert peak.category_bytes("optimizer") == 2 * 4 * 124_439_808 // 8


def test_zero_3_gathers_one_outermost_part() -> None:
    """In the head of LLaMA-2-7B: 32,000 x 4,096 weights and the final norm's 4,096, in bf16."""
    run = resolved("llama-2-7b", "precision=bf16", gpus=8, zero=3, global_batch=8)
    peak = StepPeak(run, Device()).find()
    gathered = sum(entry.nbytes for entry in peak.live if "gathered" in entry.name)
    assert "head" in peak.instant
    assert gathered == 2 * (32_000 * 4_096 + 4_096)


def test_checkpoint_of_gpt2_by_hand() -> None:
    checkpoint = estimate(resolved("gpt2")).checkpoint
    assert checkpoint.weights_bytes == 4 * 124_439_808
    assert checkpoint.full_bytes == 12 * 124_439_808


def test_gradients_at_the_optimizer_step() -> None:
    """bf16-master: 2 B of gradients and, in the update, 4 B more of fp32 copies."""
    run = resolved("gpt2", "precision=bf16-master", "seq_len=16")
    peak = StepPeak(run, Device()).find()
    assert peak.instant == "optimizer step"
    assert peak.category_bytes("gradients") == 6 * 124_439_808


def test_parallel_axes_are_refused_by_name() -> None:
    """Experts over ranks of their own are not answered wrongly."""
    with pytest.raises(NotYetError) as refusal:
        estimate(resolved("gpt3-175b", "ep=2", gpus=64, tp=8, pp=8))
    told = str(refusal.value)
    assert "error: ep = 2: this axis is not modelled yet" in told
    assert told.count("hint:") == 1


def test_larger_micro_batch_never_needs_less() -> None:
    for seed in range(6):
        run = on_ranks(random_run(seed), 1, 0)
        sizes = [estimate(with_settings(run, training__micro_batch_size=b, training__global_batch_size=b))
                 .memory.peak_requested_bytes for b in (1, 2, 3, 8)]
        assert sizes == sorted(sizes)


def test_advice_is_computed_and_fits() -> None:
    base = estimate(resolved("llama-3-8b", gpus=8, zero=3, global_batch=8), replay=True)
    assert not base.memory.fits
    advice = advise(base)
    assert len(advice) == 3
    for answer in advice:
        again: Estimate = estimate(changed(base.run, answer.change.settings), replay=True)
        assert again.memory.fits
        assert again.memory.device_used_bytes == base.memory.device_used_bytes - answer.saved_bytes
        assert answer.change.costs


def test_advice_names_what_recompute_costs() -> None:
    """Full recompute of Llama-3-8B at 8,192 tokens: 31.3 % more FLOPs, the head is not run again."""
    base = estimate(resolved("llama-3-8b", gpus=8, zero=3, global_batch=8), replay=True)
    costs = {a.change.text: a.change.costs for a in advise(base)}
    assert costs["--recompute full"] == ("31.3 % more FLOPs",)


def test_four_bytes_are_not_halved_by_autocast() -> None:
    """Autocast keeps fp32 weights, gradients and moments: 16 B a parameter in the update and 4 of sqrt(v)."""
    peak = StepPeak(resolved("gpt2", "seq_len=16", "micro_batch_size=1"), Device()).find()
    assert sum(peak.category_bytes(c) for c in ("parameters", "gradients", "optimizer")) == 20 * 124_439_808


def test_presets_of_dense_models_are_estimated() -> None:
    from gpuledger.compute.parameters import parameter_counts
    from gpuledger.config import list_presets
    from gpuledger.memory.peak import all_weights
    for name in list_presets("models"):
        model = load_model(name)
        run = resolved(name, "micro_batch_size=1", "seq_len=128",
                       "attention=efficient" if model.attention_softcap is None else "attention=eager")
        finder = StepPeak(run, Device())
        total = sum(w.numel for w in all_weights(finder.program, finder.walk))
        assert total == parameter_counts(model).total, name
