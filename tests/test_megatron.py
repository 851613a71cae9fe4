"""Megatron-LM: states over all ranks, recompute, accounts by hand."""

from __future__ import annotations

from math import ceil
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_runs import with_settings
from gpuledger.compute.parameters import parameter_counts
from gpuledger.config import Run, RunOptions, resolve_run
from gpuledger.estimate import device_of, estimate
from gpuledger.memory.frameworks.megatron.buffers import shard_ranks
from gpuledger.memory.frameworks.megatron.overheads import kept_biases
from gpuledger.memory.frameworks.megatron.stage import MegatronStage
from gpuledger.memory.frameworks.megatron.states import RankStates, chunks_of
from gpuledger.memory.peak import Peak
from gpuledger.memory.pipeline.runner import stage_programs
from gpuledger.program.local import padded_vocab_size
from megatron_runs import MODEL, biases, drawn_megatron_run, megatron_run

GIB = 2**30
DIVIDED = ("linear_qkv", "linear_fc1", "linear_proj.weight", "linear_fc2.weight", "word_embeddings",
           "output_layer")  # by tp; the rest is on every rank


def finder(run: Run, stage: int = 0) -> MegatronStage:
    return MegatronStage(run, device_of(run), stage)


def peak(run: Run, stage: int = 0) -> Peak:
    return finder(run, stage).find()


def state_bytes(run: Run, name: str, stage: int = 0) -> int:
    (state,) = (s for s in finder(run, stage).states if s.name == name)
    return int(state.nbytes)


def rank_states(run: Run, stage: int, dp_rank: int = 0) -> RankStates:
    weights = [program.weights for program in stage_programs(run, device_of(run), stage)]
    return RankStates(chunks_of(weights, run), run.parallel, stage, dp_rank)


# ---- states
@given(tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2, 4]), tied=st.booleans(),
       bias=st.booleans(), vocab_size=st.integers(100, 3000))
@settings(max_examples=12, deadline=None)
def test_parameters_of_all_ranks_are_the_model_and_named_padding(
        tp: int, pp: int, tied: bool, bias: bool, vocab_size: int) -> None:
    """What tp does not divide is there tp times; the vocabulary is padded; a tied head is a copy."""
    run = megatron_run(1, {"tie_embeddings": tied, "bias": biases(bias), "vocab_size": vocab_size}, tp=tp, pp=pp)
    weights = [w for stage in range(pp) for p in stage_programs(run, device_of(run), stage)
               for w in p.weights]
    repeated = sum(int(w.numel) for w in weights if not w.name.startswith(DIVIDED))
    padding = (padded_vocab_size(vocab_size, run.parallel) - vocab_size) * MODEL["hidden_size"]
    copies = 1 if tied and pp > 1 else 0
    copy = vocab_size * MODEL["hidden_size"] * copies
    matrices = copies + 1 if tied else 2
    whole = parameter_counts(run.model).total
    assert tp * sum(int(w.numel) for w in weights) == (
        whole + (tp - 1) * repeated + copy + matrices * padding)


@given(dp=st.sampled_from([1, 2, 3, 8]), tp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2]),
       tied=st.booleans(), busbw=st.booleans())
@settings(max_examples=12, deadline=None)
def test_shards_of_all_ranks_are_each_parameter_once(
        dp: int, tp: int, pp: int, tied: bool, busbw: bool) -> None:
    """Main parameters and moments over the data-parallel ranks; buffers are those and their padding."""
    run = megatron_run(1, {"tie_embeddings": tied}, {}, {"pad_buckets_for_high_nccl_busbw": busbw},
                       dp=dp, tp=tp, pp=pp, zero_stage=1)
    for stage in range(pp):
        ranks = [rank_states(run, stage, rank) for rank in range(shard_ranks(run.parallel))]
        elements = sum(int(w.numel) for chunk in ranks[0].chunks for w in chunk.weights)
        sharded = [sum(int(t.numel) for rank in ranks for t in kept(rank).tensors)
                   for kept in (RankStates.masters, lambda r: r.moments()[0], lambda r: r.moments()[1])]
        assert sharded == [elements] * 3
        (buffer,) = ranks[0].buffers
        gradients, parameters = ranks[0].gradients(), ranks[0].parameters()
        assert buffer.numel == elements + buffer.padding_elements
        assert sum(int(t.nbytes) for t in gradients.tensors) == 4 * elements + gradients.padding_bytes
        assert sum(int(t.nbytes) for t in parameters.tensors) == 2 * elements + parameters.padding_bytes
        assert all(end % (2**16 if busbw else 128) == 0 and end % dp == 0 for _, end in buffer.buckets)


def test_one_gpu_has_the_states_of_one_gpu() -> None:
    """Parameters, masters and moments as without a framework; main gradients are fp32."""
    options = {"make_vocab_size_divisible_by": 1}
    run = megatron_run(1, {}, {}, options)
    alone = run.model_copy(update={"parallel": type(run.parallel)()})
    elements = parameter_counts(run.model).total
    theirs, ours = estimate(alone).states, peak(run).states
    kinds = {"parameters": 2 * elements, "optimizer": 12 * elements}
    for category, nbytes in kinds.items():
        assert sum(int(s.nbytes) for s in theirs if s.category == category) == nbytes
        assert sum(int(s.nbytes) for s in ours if s.category == category) == nbytes
    assert state_bytes(run, "gradient buffers") == 4 * elements


def test_bytes_per_parameter() -> None:
    """18; 6 + 12 / d; fp16 20 in the update; precision-aware 4 + (2 + 2 + 2) / d."""
    elements = sum(int(w.numel) for w in finder(megatron_run()).weights)

    def total(zero_stage: int, dp: int, **options: Any) -> int:
        states = finder(megatron_run(1, {}, {}, options, dp=dp, zero_stage=zero_stage)).states
        return sum(int(s.nbytes) - int(s.padding_bytes) for s in states
                   if s.category in ("parameters", "gradients", "optimizer"))

    assert total(0, 4) == 18 * elements
    assert total(1, 1) == 18 * elements
    fp16 = megatron_run(1, {}, {"micro_batch_size": 1, "seq_len": 2}, {"params_dtype": "float16"})
    assert peak(fp16).instant == "optimizer step"
    assert sum(peak(fp16).category_bytes(c) for c in ("parameters", "gradients", "optimizer")) == 20 * elements
    aware = {"use_precision_aware_optimizer": True, "main_grads_dtype": "bfloat16",
             "exp_avg_dtype": "bfloat16", "exp_avg_sq_dtype": "bfloat16"}
    scales = 4 * 2 * len(finder(megatron_run()).weights)
    assert total(1, 1, **aware) == 10 * elements + scales
    assert total(1, 1, **aware, store_param_remainders=False) == 12 * elements + scales
    assert total(0, 1, params_dtype="float16", accumulate_allreduce_grads_in_fp32=True) == 18 * elements


def test_precision_aware_update_copies_states_that_are_not_fp32() -> None:
    """Two moments of 2 bytes: 8 bytes of copies for each element with weight decay."""
    options = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bfloat16",
               "exp_avg_sq_dtype": "float16"}
    run = megatron_run(1, {"num_layers": 1}, {"seq_len": 2}, options, zero_stage=1)
    decayed = sum(int(w.numel) for w in finder(run).weights if len(w.shape) > 1)
    (entry,) = (e for e in peak(run).live if e.name == "fp32 copies of states")
    assert (entry.nbytes, peak(run).instant) == (8 * decayed, "optimizer step")


def test_old_engine_keeps_biases_of_its_own_linears_alone() -> None:
    for impl, found in (("transformer_engine", 16), ("local", 0)):
        run = megatron_run(1, {}, {"attention": "eager"},
                           {"transformer_impl": impl, "old_transformer_engine": True}, zero_stage=1)
        assert len(kept_biases(run.parallel.megatron, finder(run).weights)) == found


def test_tied_embeddings_are_on_first_and_last_stage_with_a_bucket_of_their_own() -> None:
    run = megatron_run(2, pp=2, zero_stage=1)
    for stage, name in ((0, "word_embeddings.weight"), (1, "output_layer.weight")):
        (buffer,) = rank_states(run, stage).buffers
        (alone,) = (placed for placed in buffer.placed if placed.weight.name == name)
        assert [p.bucket for p in buffer.placed].count(alone.bucket) == 1


def test_rotary_angles_are_kept() -> None:
    """fp32 angles of every position and half as many frequencies, once a chunk."""
    run = megatron_run(2, {"positions": "rotary"}, pp=2, vpp=2)
    assert state_bytes(run, "rotary tables", 1) == 2 * (4 * 64 * 16 + 2 * 16)


# ---- activations
@given(seed=st.integers(1000, 1200))
@settings(max_examples=15, deadline=None)
def test_a_larger_micro_batch_never_needs_less(seed: int) -> None:
    run = drawn_megatron_run(seed)
    grown = with_settings(run, training__micro_batch_size=run.training.micro_batch_size + 1,
                          training__global_batch_size=run.training.global_batch_size
                          // run.training.micro_batch_size * (run.training.micro_batch_size + 1))
    assert peak(grown).requested_bytes >= peak(run).requested_bytes


def test_recompute_keeps_inputs_by_the_method() -> None:
    """After forward: uniform the input of each group, block those of N layers and all of the others."""
    h, tokens, layers = MODEL["hidden_size"], 64, 8

    def held(recompute: str, **options: Any) -> int:
        run = megatron_run(2, {"num_layers": 2 * layers}, {"recompute": recompute}, options, pp=2)
        (chunk,) = finder(run).chunks
        return sum(int(e.nbytes) for e in chunk.live_held("F", 1) if "block" in e.name)

    one_input = 2 * tokens * h
    without_input = (held("none") - (layers - 1) * one_input) // layers
    inputs = {n: held("full", recompute_num_layers=n) for n in (1, 2, 3, 8)}
    # The first group's input is the embedding's output, which is no block's.
    assert inputs == {n: (ceil(layers / n) - 1) * one_input for n in inputs}
    for n in (1, 3):
        block = held("full", recompute_method="block", recompute_num_layers=n)
        assert held("none") - block == n * without_input
    assert held("full", recompute_method="block", recompute_num_layers=layers) == inputs[1]


def test_recompute_modules() -> None:
    """Flash keeps its output and logsumexp; the MLP its norm, two hidden tensors and their statistics."""
    tokens, h, f, heads = 64, 128, 512, 8

    def held(modules: list[str] | None) -> int:
        training = {"recompute": "selective" if modules else "none"}
        options = {"recompute_modules": modules} if modules else {}
        (chunk,) = finder(megatron_run(2, {"num_layers": 2}, training, options, pp=2)).chunks
        return sum(int(e.nbytes) for e in chunk.live_held("F", 1))

    assert held(None) - held(["core_attn"]) == 4 * heads * tokens + 16
    assert held(None) - held(["mlp"]) == 2 * tokens * (h + 2 * f) + 8 * tokens
    assert held(["layernorm"]) == held(None)  # part of Transformer Engine's linears
    assert held(["core_attn", "mlp"]) == held(["core_attn"]) + held(["mlp"]) - held(None)


def test_deferred_weight_gradients_keep_logits_until_the_step_ends() -> None:
    """Each waits with its 16-bit gradient of the logits and the output layer's input, whose graph holds the
    chunk's input and its gradient."""
    tokens, h, padded = 64, MODEL["hidden_size"], 1024

    def level(limit: int) -> int:
        options = {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": limit,
                   "keeps_deferred_gradient": False}
        return int(peak(megatron_run(6, {}, {}, options, pp=2), 1).requested_bytes)

    each = 2 * tokens * padded + 3 * 2 * tokens * h
    assert level(4) - level(3) == each
    assert level(0) == level(6)


def test_gpt3_175b_with_full_recompute_is_48_gib_where_megatrons_formula_says_77_8() -> None:
    """tp 8, pp 8, micro-batch 1, sequence parallelism. Megatron's own report leaves out that sequence
    parallelism divides what full recompute keeps. Ref: Megatron-LM theoretical_memory_usage.py."""
    run, _ = resolve_run("gpt3-175b", RunOptions(
        gpu="a100-80gb-sxm", gpus=64, tp=8, pp=8, zero=0, global_batch=64, recompute="full",
        set=("framework=megatron", "sequence_parallel=true", "attention=eager",
             "megatron.transformer_impl=local")))
    found = peak(run)
    elements = 2_822_731_776  # 12 layers / 8, 6,400 rows of the vocabulary, all 2,048 positions
    states = {c: found.category_bytes(c) for c in ("parameters", "optimizer")}
    assert states == {"parameters": 2 * elements, "optimizer": 12 * elements}
    assert state_bytes(run, "gradient buffers") == 4 * elements
    inputs = sum(int(e.nbytes) for e in found.live if e.name.endswith(("mlp residual", "word + position"))
                 and not e.name.startswith("d("))
    one = 2 * 2048 * 12288 // 8
    assert inputs == (8 * 12 + 1) * one  # 8 micro-batches of 12 inputs, and what is run again to its end
    rest = found.requested_bytes - 18 * elements - inputs
    assert round(found.requested_bytes / GIB, 2) == 48.43
    assert rest == 579_301_420  # one layer with its attention matrix, workspaces, masks
