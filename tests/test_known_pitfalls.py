"""Mistakes that calculators are known to make with dense models: tests that they are not made here."""
from __future__ import annotations

import pytest

from gpuledger.compute.conventions import model_flops_per_token
from gpuledger.compute.parameters import parameter_counts
from gpuledger.config import Run, RunOptions, load_model, resolve_run
from gpuledger.estimate import estimate
from gpuledger.memory.peak import Peak, StepPeak
from gpuledger.program.device import Device

GPT2_PARAMETERS = 124_439_808
LLAMA_2_7B_PARAMETERS = 6_738_415_616


def resolved(source: str, *settings: str, **options: object) -> Run:
    options.setdefault("gpus", 1)
    return resolve_run(source, RunOptions(gpu="h100", set=settings, **options))[0]


def peak_of(run: Run) -> Peak:
    return StepPeak(run, Device()).find()


def test_a_tied_head_is_counted_once() -> None:
    """Untied, GPT-2 would have 50,257 x 768 parameters more."""
    model = load_model("gpt2")
    assert parameter_counts(model).total == GPT2_PARAMETERS
    untied = model.model_copy(update={"tie_embeddings": False})
    assert parameter_counts(untied).total == GPT2_PARAMETERS + 38_597_376


def test_the_width_of_the_mlp_is_read() -> None:
    """LLaMA-2-7B's 11,008 is neither 4 h nor 8/3 h; its three matrices count 6 FLOPs an element each."""
    model = load_model("llama-2-7b")
    wider = model.model_copy(update={"ffn_hidden_size": 16_384})
    more = 32 * 3 * 4_096 * (16_384 - 11_008)
    assert parameter_counts(wider).total - LLAMA_2_7B_PARAMETERS == more
    assert model_flops_per_token(wider, 4_096) - model_flops_per_token(model, 4_096) == 6 * more


def test_gradients_are_in_the_peak() -> None:
    """Pure bf16: 2 B of parameters, 2 of gradients, 4 of moments and 2 of sqrt(v) per parameter."""
    peak = peak_of(resolved("llama-2-7b", "precision=bf16", seq_len=128))
    assert peak.category_bytes("gradients") == 2 * LLAMA_2_7B_PARAMETERS
    assert sum(peak.category_bytes(c) for c in ("parameters", "gradients", "optimizer")) == (
        10 * LLAMA_2_7B_PARAMETERS)


def test_mixed_precision_is_not_cheaper_than_its_states() -> None:
    """Autocast keeps 4 B of parameters, of gradients and of each moment: 16 B a parameter, not 8."""
    memory = estimate(resolved("gpt2", seq_len=16)).memory.category_bytes
    assert memory["parameters"] + memory["gradients"] + memory["optimizer"] >= 16 * GPT2_PARAMETERS


@pytest.mark.parametrize(("stage", "divided"), [(0, 0), (1, 2), (2, 3), (3, 4)])
def test_each_zero_stage_divides_what_it_says(stage: int, divided: int) -> None:
    """ZeRO-1 exists, and ZeRO-2 divides the gradients: in fp32 of 4 x 4 B, `divided` x 4 B are an eighth."""
    run = resolved("llama-2-7b", "precision=fp32", "attention=efficient", "optimizer_implementation=fused",
                   gpus=8, zero=stage, global_batch=8, seq_len=128)
    finder = StepPeak(run, Device())
    parameters = finder.policy.parameters([(w, 1) for w in finder.weights])
    states = {s.name: s.nbytes for s in finder.states}
    whole = 4 * LLAMA_2_7B_PARAMETERS
    kept = states["parameters"] + 2 * states["exp_avg"]
    assert len(parameters) == 291
    gradients = sum(finder.policy.gradient(w).nbytes for w in finder.weights)
    assert kept + gradients == whole * (4 - divided) + whole * divided // 8


def test_grouped_queries_and_gates_change_activations() -> None:
    """Fewer kv heads keep less; a gate keeps a second and third tensor of the MLP's width."""
    base = resolved("llama-2-7b", "precision=bf16", "kernels=torch")
    grouped = resolved("llama-2-7b", "precision=bf16", "num_kv_heads=1")
    plain = resolved("llama-2-7b", "precision=bf16", "activation=gelu")
    saved = [kept_by_blocks(run) for run in (base, grouped, plain)]
    assert saved[1] < saved[0] and saved[2] < saved[0]


def kept_by_blocks(run: Run) -> int:
    from gpuledger.program.measures import saved_bytes
    from gpuledger.program.model import build

    program = build(run.model, run.training, Device(), num_layers=1)
    return int(saved_bytes(program.root.find("block 0")))


def test_recompute_needs_less_and_costs_flops() -> None:
    runs = [resolved("llama-2-7b", "precision=bf16", recompute=mode) for mode in ("none", "selective", "full")]
    activations = [estimate(run).memory.peak_requested_bytes for run in runs]
    flops = [estimate(run).flops.hardware_flops_per_step for run in runs]
    assert activations == sorted(activations, reverse=True)
    assert flops == sorted(flops) and flops[0] < flops[2]


def test_activations_of_a_large_model_are_not_lost() -> None:
    """One block of GPT-3 175B keeps 34 s b h + 4 a s b + 16 s b in bf16 with fused attention and dropout."""
    run = resolved("gpt3-175b", "precision=bf16", "attention=efficient", "dropout=0.1", "attention_dropout=0.0")
    s, h, a = 2_048, 12_288, 96
    assert kept_by_blocks(run) == 34 * s * h + 4 * a * s + 16 * s + 16


def test_the_allocator_rounds_and_keeps_segments() -> None:
    memory = estimate(resolved("gpt2"), replay=True).memory
    assert memory.peak_requested_bytes < memory.peak_allocated_bytes < memory.peak_reserved_bytes


def test_attention_flops_are_counted_whatever_the_kernel() -> None:
    """Half of s^2 under the mask, by the default convention; not zero, as where a counter knows no kernel."""
    model = load_model("gpt2")
    quadratic = model_flops_per_token(model, 2_048) - model_flops_per_token(model, 1_024)
    assert quadratic == 6 * 12 * 768 * 1_024
