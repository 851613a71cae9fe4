"""Tensor parallelism: what ranks keep adds up, what is saved is what the papers count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_runs import random_run
from gpuledger.config import Run
from gpuledger.errors import InputError, NotYetError
from gpuledger.estimate import estimate
from gpuledger.memory.peak import StepPeak
from gpuledger.memory.timeline import Timeline
from gpuledger.program.device import Device
from gpuledger.program.local import Local
from gpuledger.program.model import build
from meshes import on_mesh, resolved


def saved_in_block(run: Run) -> int:
    """Bytes that one block leaves behind for backward: the difference that one block more makes."""
    levels = []
    for num_layers in (2, 3):
        program = build(
            run.model,
            run.training,
            Device(),
            num_layers=num_layers,
            local=Local.of_rank(run.model, run.training, run.parallel),
        )
        timeline = Timeline(program)
        timeline.forward_pass()
        levels.append(sum(sign * nbytes for sign, _, nbytes in timeline.memory.events))
    return levels[1] - levels[0]


def gpt(precision: str = "bf16") -> Run:
    """A GPT-2 block of paper size with every dropout, eager attention."""
    return resolved(
        "gpt2",
        f"precision={precision}",
        "attention=eager",
        "seq_len=1024",
        "micro_batch_size=2",
        "model.dropout=0.1",
        "model.attention_dropout=0.1",
    )


def test_saved_bytes_without_and_with_sequence_parallelism() -> None:
    """Korthikanti section 4: s b h (10 + 24 / t + 5 a s / (h t)), with SP all of it / t; and the
    LayerNorms' statistics, which the paper leaves out."""
    run = gpt()
    b, s, h, a, t = 2, 1_024, 768, 12, 4
    whole, split = (
        saved_in_block(on_mesh(run, tp=t, sequence_parallel=sp)) for sp in (False, True)
    )
    statistics = 2 * 2 * 4 * b * s  # LayerNorm's mean and rstd, fp32
    paper = s * b * h * 10 + s * b * h * 24 // t + 5 * a * s * s * b // t
    assert whole - statistics == paper
    assert split - statistics // t == paper - s * b * h * 10 * (t - 1) // t


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 200), tp=st.sampled_from([2, 3, 4, 8]))
def test_parameters_of_all_ranks_are_the_whole_and_named_padding(seed: int, tp: int) -> None:
    """Weights that are split add up to the whole; what every rank has is counted once."""
    run = divisible(seed, tp)
    whole = {
        w.name: w.numel for w in build(run.model, run.training, Device(), num_layers=1).weights
    }
    local = Local.of_rank(run.model, run.training, on_mesh(run, tp=tp).parallel)
    parts = {
        w.name: w.numel
        for w in build(run.model, run.training, Device(), num_layers=1, local=local).weights
    }
    padding = tp * local.vocab_size - run.model.vocab_size
    assert 0 <= padding < tp
    rows = {
        "token.weight": run.model.hidden_size,
        "head.weight": run.model.hidden_size,
        "head.bias": 1,
    }
    replicated = [
        n
        for n, size in whole.items()
        if "norm" in n
        or n == "position.weight"
        or (n.endswith(".bias") and size == run.model.hidden_size and parts[n] == size)
    ]
    for name, size in whole.items():
        ranks = 1 if name in replicated else tp
        assert ranks * parts[name] == size + padding * rows.get(name, 0), name


def divisible(seed: int, tp: int) -> Run:
    run = random_run(
        seed,
        training__loss="cross_entropy",
        training__optimizer="adamw",
        training__optimizer_implementation="foreach",
        training__amsgrad=False,
        training__momentum=0.0,
        training__keep_logits=False,
    )
    model = run.model
    changes = {
        "num_heads": model.num_heads * tp,
        "num_kv_heads": model.num_kv_heads * tp,
        "ffn_hidden_size": model.ffn_hidden_size * tp,
        "qk_norm": "none",
    }
    return run.model_copy(update={"model": model.model_copy(update=changes)})


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 200),
    tp=st.sampled_from([2, 4]),
    sp=st.booleans(),
    style=st.sampled_from(["megatron", "torch"]),
)
def test_peak_never_falls_when_the_micro_batch_grows(
    seed: int, tp: int, sp: bool, style: str
) -> None:
    run = divisible(seed, tp)
    keys = run.training.model_copy(update={"seq_len": run.training.seq_len // tp * tp or tp})
    run = run.model_copy(update={"training": keys})
    peaks = []
    for b in (1, 2, 5):
        training = run.training.model_copy(update={"micro_batch_size": b, "global_batch_size": b})
        mesh = on_mesh(
            run.model_copy(update={"training": training}),
            tp=tp,
            sequence_parallel=sp,
            model_parallel=style,
        )
        peaks.append(StepPeak(mesh, Device()).find().requested_bytes)
    assert peaks == sorted(peaks)


@pytest.mark.parametrize("seed", range(6))
def test_one_rank_of_each_axis_is_the_single_gpu(seed: int) -> None:
    run = random_run(seed)
    alone = StepPeak(run, Device()).find()
    for settings_of_one in ({"model_parallel": "torch"}, {"context_exchange": "all-gather"}):
        assert (
            StepPeak(on_mesh(run, run.num_microbatches, **settings_of_one), Device()).find()
            == alone
        )


def test_vocabulary_parallel_loss_keeps_six_bytes_a_logit() -> None:
    """bf16 logits and their fp32 copy, of a quarter of 50,260 rows, while the loss is formed."""
    run = on_mesh(gpt(), tp=4)
    peak = StepPeak(run, Device()).find()
    logits = 2 * 1_024 * 50_260 // 4
    sizes = {entry.name: entry.nbytes for entry in peak.live}
    assert "head" in peak.instant
    assert (sizes["head"], sizes["head.float32"]) == (2 * logits, 4 * logits)


def test_dtensor_keeps_the_gathered_input_whole() -> None:
    """Two gathered inputs of b s h a block, where Megatron keeps their parts."""
    run = gpt()
    b, s, h, t = 2, 1_024, 768, 4
    megatron, torch = (
        saved_in_block(on_mesh(run, tp=t, sequence_parallel=True, model_parallel=style))
        for style in ("megatron", "torch")
    )
    assert torch - megatron == 2 * (2 * b * s * h) - 2 * (2 * b * s * h) // t


def test_of_one_sequence_the_gathered_tokens_are_the_collectives() -> None:
    """b = 1: no second b s h beside the gathered one, in forward and in backward."""
    run = on_mesh(resolved("gpt2", "seq_len=64", "attention=eager", "precision=bf16"), tp=4,
                  sequence_parallel=True, model_parallel="torch")
    buffers = {}
    for b in (1, 2):
        training = run.training.model_copy(update={"micro_batch_size": b})
        program = build(run.model, training, Device(), num_layers=1,
                        local=Local.of_rank(run.model, training, run.parallel))
        gathers = [op for op in program.root.ops() if op.name == "all-gather"]
        assert all(op.writes[0].nbytes == 2 * b * 64 * 768 for op in gathers)
        buffers[b] = [sum(move.tensor.nbytes for move in op.forward_moves if move.sign > 0)
                      for op in gathers]
    assert buffers == {1: 3 * [2 * 64 * 768], 2: 3 * [2 * 2 * 2 * 64 * 768]}


def test_dtensors_gradient_of_the_vocabulary_is_whole() -> None:
    """50,260 rows of 768 bf16 on each of 4 ranks, and beside a tied head's the quarter that is added."""
    for tied, sizes in ((True, [77_199_360, 19_299_840]), (False, [77_199_360])):
        run = on_mesh(resolved("gpt2", "seq_len=16", "attention=eager", "precision=bf16",
                               f"tie_embeddings={str(tied).lower()}", "vocab_size=50260"),
                      tp=4, model_parallel="torch")
        program = build(run.model, run.training, Device(), num_layers=1,
                        local=Local.of_rank(run.model, run.training, run.parallel))
        timeline = Timeline(program)
        timeline.micro_batch()
        made = [t.nbytes for t in timeline.memory.tensors if t.name == "d(token.weight)"]
        # the head's own gradient comes first, the sum last
        assert made == ([19_299_840, *sizes, 19_299_840] if tied else sizes)


def test_loss_parallel_by_hand() -> None:
    """16 rows of 25 columns: two fp32 tensors at once; of bf16 logits three, and the bf16 result."""
    for precision, highest in (("fp32", 2 * 1_600), ("bf16", 3 * 1_600 + 800)):
        run = on_mesh(resolved("gpt2", "seq_len=16", "attention=eager", f"precision={precision}",
                               "vocab_size=100"), tp=4, model_parallel="torch")
        program = build(run.model, run.training, Device(), num_layers=1,
                        local=Local.of_rank(run.model, run.training, run.parallel))
        (op,) = [op for op in program.root.ops() if op.name == "log_softmax"]
        live = peak = 0
        for move in op.forward_moves:
            live += move.sign * move.tensor.nbytes * (move.tensor.numel == 16 * 25)
            peak = max(peak, live)
        assert (live, peak) == (op.writes[0].nbytes, highest)


def test_dtensor_does_not_pad_the_vocabulary() -> None:
    run = on_mesh(resolved("gpt2", "seq_len=16", "attention=eager", "precision=bf16"), tp=4,
                  model_parallel="torch")
    assert any(line == "vocabulary of 50,257 rows in pieces of 12,565 on tensor-parallel ranks; the last have fewer"
               for line in estimate(run).assumptions)


def test_what_does_not_divide_is_said() -> None:
    with pytest.raises(InputError, match="num_heads = 12 cannot be split 5 ways"):
        estimate(on_mesh(gpt(), tp=5))
    with pytest.raises(NotYetError, match="loss: chunked over a vocabulary divided by tp = 2"):
        estimate(on_mesh(resolved("gpt2", "loss=chunked"), tp=2))
