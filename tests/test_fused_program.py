"""kernels: fused in the program: what its operators keep, and what a run leaves to PyTorch."""
from __future__ import annotations

import pytest

from gpuledger.config import load_gpu
from gpuledger.config.cluster import Cluster
from gpuledger.config.fused_kernels import FusedKernels, fallbacks
from gpuledger.config.load import load_model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.problems import validated
from gpuledger.config.run import Run
from gpuledger.config.training import Training
from gpuledger.errors import InputError, NotYetError
from gpuledger.estimate import estimate
from gpuledger.memory.optimizer_states import optimizer_states
from gpuledger.program.device import Device
from gpuledger.program.measures import saved_bytes
from gpuledger.program.model import build
from gpuledger.program.tensor import Tensor

B, S = 2, 64
TOKENS = B * S
STEP = dict(seq_len=S, micro_batch_size=B, global_batch_size=B, precision="bf16", optimizer="adamw",
            attention="flash", recompute="none", loss="cross_entropy", kernels="fused")


def step(**fields) -> Training:
    return validated(Training, STEP | fields)


def program_of(model, **fields):
    return build(model, step(**fields), Device())


def kept(program, name: str) -> int:
    """Bytes that the operators of this name in the first block keep, besides parameters."""
    ops = [op for op in program.root.find("block 0").ops() if op.name == name]
    assert ops
    storages = {t.storage for op in ops for t in op.saves}
    return sum(t.nbytes for t in storages if t.role not in ("parameter", "table"))


LLAMA, GPT2 = load_model("llama3-8b"), load_model("gpt2")


def test_norms_keep_their_input_or_the_sum():
    llama, gpt2 = program_of(LLAMA), program_of(GPT2)
    assert kept(llama, "attention norm") == TOKENS * (2 * 4096 + 4)
    assert kept(llama, "mlp norm") == TOKENS * (2 * 4096 + 4)
    assert kept(gpt2, "mlp norm") == TOKENS * (2 * 768 + 8)


def test_activations_are_formed_again():
    assert kept(program_of(LLAMA), "down") == TOKENS * 2 * (2 * 14_336)
    assert kept(program_of(GPT2), "down") == TOKENS * 2 * 3072
    # Under autocast the node keeps its copies of bias and weight too: (f) and (h, f).
    mixed = program_of(GPT2, precision="bf16-mixed")
    assert kept(mixed, "down") == TOKENS * 2 * 3072 + 2 * 3072 + 2 * 768 * 3072
    biased = LLAMA.model_copy(update={"bias": LLAMA.bias.model_copy(update={"mlp_down": True})})
    assert kept(program_of(biased), "swiglu") == TOKENS * 2 * (2 * 14_336)
    assert kept(program_of(biased), "down") == TOKENS * 2 * 14_336


def test_dropout_and_rotation_keep_nothing():
    dropping = GPT2.model_copy(update={"dropout": 0.1})
    assert kept(program_of(dropping), "mlp dropout") == 0
    assert kept(program_of(LLAMA), "query rotated") == 0


def test_a_block_of_llama_3_8b_by_hand():
    """Six tensors as wide as the residual stream, keys and values of all heads, SwiGLU's inputs,
    4 bytes a row for two norms and each head, and flash's three random numbers."""
    block = program_of(LLAMA).root.find("block 0")
    h, kv, f, heads = 4096, 1024, 14_336, 32
    wide = 2 * TOKENS * (h + h + h + h + h + h)         # input, norm, query, output, sum, norm
    grouped = 2 * TOKENS * 2 * h                        # key and value, repeated to all heads
    rows = 4 * TOKENS * (1 + 1 + heads)
    assert saved_bytes(block) == wide + grouped + 2 * TOKENS * 2 * f + rows + 24
    assert kv * 4 == h


def test_adamw_counts_steps_on_the_host():
    weight = Tensor("up.weight", (8, 4), "float32", "parameter")
    sizes = {kernels: [t.nbytes for t in optimizer_states(
        weight, step(kernels=kernels, optimizer_implementation="fused"))]
        for kernels in ("torch", "fused")}
    assert sizes == {"torch": [4, 128, 128], "fused": [128, 128]}


@pytest.mark.parametrize("model, fields, sentence", [
    (LLAMA, {}, "optimizer_implementation is foreach; fused takes the multi-tensor AdamW"),
    (LLAMA, {"optimizer": "lion"}, "the fused step is AdamW's, not lion's"),
    (LLAMA, {"optimizer_implementation": "fused", "amsgrad": True}, "no amsgrad"),
    (LLAMA, {"keep_logits": True}, "keep_logits wants the logits, which the fused loss overwrites"),
    (LLAMA.model_copy(update={"activation": "geglu"}), {}, "activation geglu"),
    (LLAMA.model_copy(update={"bias": LLAMA.bias.model_copy(update={"mlp_down": True})}), {},
     "the down-projection: it has a bias"),
    (LLAMA.model_copy(update={"bias": LLAMA.bias.model_copy(update={"head": True})}),
     {"loss": "fused_linear"}, "the fused linear loss has no bias of the head"),
    (GPT2.model_copy(update={"attention_dropout": 0.1}), {}, "dropout inside attention flash"),
])
def test_what_is_left_to_pytorch_is_said(model, fields, sentence):
    said = list(fallbacks(model, step(**fields)))
    assert any(sentence in line for line in said), said


def test_nothing_is_left_where_every_part_has_a_kernel():
    fused = step(optimizer_implementation="fused")
    assert list(fallbacks(LLAMA, fused)) == []
    assert FusedKernels.of(LLAMA, fused) == FusedKernels(
        norm=True, activation="swiglu_linear", loss="in place", rotary=True, dropout=True,
        adamw=True)
    assert FusedKernels.of(LLAMA, step(kernels="torch")) == FusedKernels()


def run_of(parallel: dict, **fields) -> Run:
    parallel = validated(Parallelism, parallel)
    training = step(**fields)
    batch = training.micro_batch_size * parallel.dp
    return Run(name="r", model=LLAMA, parallel=parallel, cluster=Cluster(
        gpu=load_gpu("h100-80gb-sxm"), gpus=parallel.world_size, gpus_per_node=8),
        training=training.model_copy(update={"global_batch_size": batch}))


def test_estimate_says_what_pytorch_does():
    warnings = estimate(run_of({"dp": 8, "zero_stage": 3})).warnings
    assert any(line.startswith("kernels: fused leaves to PyTorch: optimizer") for line in warnings)


def test_a_fused_step_peaks_lower():
    peaks = {kernels: estimate(run_of({"dp": 8, "zero_stage": 3}, kernels=kernels, seq_len=8192,
                                      micro_batch_size=1)).memory.peak_requested_bytes
             for kernels in ("torch", "fused")}
    assert peaks["torch"] - peaks["fused"] > 10 * 2**30


@pytest.mark.parametrize("parallel", [{"tp": 2}, {"dp": 2, "framework": "ddp"}])
def test_divided_layers_and_frameworks_are_refused(parallel):
    with pytest.raises(NotYetError, match="kernels: fused with"):
        estimate(run_of(parallel))


def test_a_composed_rmsnorm_is_refused():
    with pytest.raises(InputError, match="kernels: fused"):
        step(rmsnorm_implementation="composed")
