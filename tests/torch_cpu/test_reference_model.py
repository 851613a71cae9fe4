"""The reference modules on the CPU: counts, every option runs, options that must agree do."""

from __future__ import annotations

import pytest
import torch
from small_records import gpt2, llama, training

from gpuledger.compute.parameters import parameter_counts
from gpuledger.config import list_presets
from gpuledger.config.load import load_model
from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.errors import InputError
from gpuledger.torch_runs.precision import WEIGHT_DTYPE, autocast
from gpuledger.torch_runs.reference_model.model import LanguageModel
from gpuledger.torch_runs.reference_model.tables import alibi_slopes

GPT2_SIZES = [
    (12, 768, 12, 124_439_808),
    (24, 1024, 16, 354_823_168),
    (36, 1280, 20, 774_030_080),
    (48, 1600, 25, 1_557_611_200),
]


def build(model: Model, step: Training, device: str = "cpu") -> LanguageModel:
    torch.manual_seed(1)
    torch.set_default_dtype(WEIGHT_DTYPE[step.precision])
    try:
        with torch.device(device):
            return LanguageModel(model, step)
    finally:
        torch.set_default_dtype(torch.float32)


def batch(model: Model, step: Training) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    shape = (step.micro_batch_size, step.seq_len)
    tokens, targets = (
        torch.randint(model.vocab_size, shape, generator=generator) for _ in range(2)
    )
    return tokens, targets


def loss_of(network: LanguageModel, model: Model, step: Training) -> torch.Tensor:
    with autocast(step.precision, "cpu"):
        output = network(*batch(model, step))
    return output[0] if step.keep_logits else output


def loss_and_gradients(model: Model, step: Training, weights: dict | None = None) -> dict:
    network = build(model, step)
    if weights is not None:
        network.load_state_dict(weights)
    loss = loss_of(network, model, step)
    loss.backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    return {"loss": loss.detach(), "weights": network.state_dict(), "gradients": gradients}


def assert_same_step(a: dict, b: dict) -> None:
    torch.testing.assert_close(a["loss"], b["loss"], rtol=1e-6, atol=1e-6)
    assert a["gradients"].keys() == b["gradients"].keys()
    for name, gradient in a["gradients"].items():
        torch.testing.assert_close(gradient, b["gradients"][name], rtol=1e-4, atol=1e-6)


def num_parameters(model: Model) -> int:
    return sum(p.numel() for p in build(model, training(seq_len=8), "meta").parameters())


@pytest.mark.parametrize("layers, hidden, heads, parameters", GPT2_SIZES)
def test_gpt2_parameters(layers, hidden, heads, parameters):
    model = gpt2(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=64,
        ffn_hidden_size=4 * hidden,
        vocab_size=50257,
        max_position_embeddings=1024,
    )
    assert num_parameters(model) == parameters


def test_llama2_7b_parameters():
    model = llama(
        num_layers=32,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=32,
        head_dim=128,
        ffn_hidden_size=11008,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    assert num_parameters(model) == 6_738_415_616


def test_llama3_8b_parameters():
    model = llama(
        num_layers=32,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        ffn_hidden_size=14336,
        vocab_size=128256,
        max_position_embeddings=8192,
    )
    assert num_parameters(model) == 8_030_261_248


MODELS = {
    "gpt2": gpt2(),
    "gpt2 dropout": gpt2(dropout=0.1, attention_dropout=0.2, embedding_dropout=0.3),
    "gpt2 without bias": gpt2(bias=False),
    "head bias": gpt2(bias={**gpt2().bias.model_dump(), "head": True}, tie_embeddings=False),
    "learned offset": gpt2(learned_position_offset=2),
    "embedding norm, alibi": gpt2(positions="alibi", embedding_norm=True),
    "no positions": gpt2(positions="none"),
    "partial rotary, parallel": gpt2(positions="rotary", rotary_dim=4, parallel_residual=True),
    "parallel, shared norm, MQA": gpt2(
        positions="rotary", parallel_residual=True, shared_norm=True, num_kv_heads=1
    ),
    "fused, rotary, GQA": llama(qkv_projection="fused", gate_up_projection="fused"),
    "llama": llama(),
    "llama MQA": llama(num_kv_heads=1),
    "llama MHA tied": llama(num_kv_heads=4, tie_embeddings=True),
    "wide heads": llama(head_dim=12),
    "query and key-value bias": llama(
        bias={**llama().bias.model_dump(), "query": True, "key_value": True}
    ),
    "qk norm per head": llama(qk_norm="head"),
    "qk norm, fused": llama(qk_norm="head", qkv_projection="fused"),
    "OLMo 2": llama(qk_norm="full", norm_position="post"),
    "Gemma 2": llama(
        norm_position="sandwich",
        activation="geglu",
        embedding_scale=True,
        sliding_window=6,
        full_attention_interval=2,
        attention_softcap=50.0,
        logits_softcap=30.0,
    ),
    "relu": gpt2(activation="relu"),
    "gelu": gpt2(activation="gelu"),
    "squared relu": gpt2(activation="squared_relu"),
    "silu": gpt2(activation="silu"),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_option_runs(name):
    step = loss_and_gradients(MODELS[name], training())
    assert torch.isfinite(step["loss"])
    assert all(g is not None and torch.isfinite(g).all() for g in step["gradients"].values())


TRAININGS = {
    "composed rmsnorm": training(rmsnorm_implementation="composed"),
    "math": training(attention="math"),
    "flash": training(attention="flash", precision="bf16"),
    "bf16": training(precision="bf16"),
    "bf16-mixed": training(precision="bf16-mixed"),
    "fp16-mixed": training(precision="fp16-mixed"),
    "bf16-master": training(precision="bf16-master", loss="fp32_logits"),
    "recompute full": training(recompute="full"),
    "recompute selective": training(recompute="selective"),
    "recompute every 2": training(recompute={"every": 2}),
    "fp32 logits kept": training(loss="fp32_logits", keep_logits=True, precision="bf16-mixed"),
    "logits kept": training(keep_logits=True),
    "chunked": training(loss="chunked", loss_chunks=7),
    "fused linear": training(loss="fused_linear", loss_chunks=4),
}


@pytest.mark.parametrize("family", [gpt2, llama])
@pytest.mark.parametrize("name", TRAININGS)
def test_every_training_option_runs(name, family):
    step = loss_and_gradients(family(), TRAININGS[name])
    assert torch.isfinite(step["loss"])
    assert all(g is not None and torch.isfinite(g).all() for g in step["gradients"].values())


def test_kept_logits_are_those_of_the_loss():
    model, step = gpt2(), training(keep_logits=True, precision="bf16-mixed", loss="fp32_logits")
    with autocast(step.precision, "cpu"):
        _, logits = build(model, step)(*batch(model, step))
    assert logits.dtype == torch.float32
    assert logits.shape == (3, 20, 96)


@pytest.mark.parametrize(
    "options",
    [
        dict(loss="chunked", loss_chunks=7),
        dict(loss="fp32_logits"),
        dict(loss="fused_linear"),
        dict(recompute="full"),
        dict(recompute="selective"),
        dict(recompute={"every": 2}),
        dict(attention="math"),
        dict(rmsnorm_implementation="composed"),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", [gpt2, llama])
def test_options_that_change_memory_leave_the_step_as_it_is(options, family):
    plain = loss_and_gradients(family(), training())
    assert_same_step(plain, loss_and_gradients(family(), training(**options), plain["weights"]))


@pytest.mark.parametrize(
    "model",
    [
        llama(sliding_window=5),
        llama(sliding_window=5, full_attention_interval=2),
        gpt2(positions="alibi"),
        gpt2(positions="alibi", num_heads=6, num_kv_heads=6),
    ],
    ids=["window", "alternating", "alibi", "6 heads"],
)
def test_eager_and_math_agree_on_windows_and_biases(model):
    eager = loss_and_gradients(model, training())
    assert_same_step(eager, loss_and_gradients(model, training(attention="math"), eager["weights"]))


def test_a_window_matters_only_when_shorter_than_the_sequence():
    causal = loss_and_gradients(llama(), training())
    wide = loss_and_gradients(llama(sliding_window=20), training(), causal["weights"])
    narrow = loss_and_gradients(llama(sliding_window=19), training(), causal["weights"])
    assert wide["loss"] == causal["loss"]
    assert narrow["loss"] != causal["loss"]


def test_fused_and_separate_projections_agree():
    separate = loss_and_gradients(llama(), training())
    fused = loss_and_gradients(
        llama(qkv_projection="fused", gate_up_projection="fused"),
        training(),
        fuse(separate["weights"]),
    )
    torch.testing.assert_close(separate["loss"], fused["loss"])
    gradients = fuse(separate["gradients"])
    for name, gradient in fused["gradients"].items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=1e-6)


def fuse(weights: dict) -> dict:
    """The weights of separate projections, concatenated as the fused ones."""
    out = {}
    for name, weight in weights.items():
        if "project.query" in name:
            names = [name, name.replace("query", "key"), name.replace("query", "value")]
            out[name.replace("query", "qkv")] = torch.cat([weights[n] for n in names])
        elif "mlp.gate" in name:
            out[name.replace("gate", "gate_up")] = torch.cat(
                [weight, weights[name.replace("gate", "up")]]
            )
        elif not any(part in name for part in ("project.key", "project.value", "mlp.up")):
            out[name] = weight
    return out


def test_rotation_keeps_the_length_of_a_query_and_depends_on_distance_only():
    network = build(llama(), training())
    cos, sin = network.tables.cos, network.tables.sin
    from gpuledger.torch_runs.reference_model.attention import rotate

    x, y = torch.randn(2, 8)
    rotated_x, rotated_y = (rotate(t.expand(1, 1, 20, 8), cos, sin)[0, 0] for t in (x, y))
    torch.testing.assert_close(rotated_x.norm(dim=-1), x.norm().expand(20))
    torch.testing.assert_close(rotated_x[3] @ rotated_y[1], rotated_x[12] @ rotated_y[10])
    assert not torch.allclose(rotated_x[3] @ rotated_y[1], rotated_x[12] @ rotated_y[1])


def test_alibi_slopes_of_eight_and_twelve_heads():
    eighths = [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(8) == eighths
    assert alibi_slopes(12) == eighths + [2.0 ** -(i + 0.5) for i in range(4)]


@pytest.mark.parametrize(
    "model, step, words",
    [
        (gpt2(positions="alibi"), training(attention="flash", precision="bf16"), "ALiBi"),
        (gpt2(attention_dropout=0.1), training(attention="cudnn", precision="bf16"), "dropout"),
        (gpt2(logits_softcap=30.0), training(loss="fused_linear"), "softcap"),
    ],
)
def test_combinations_without_a_kernel_are_refused(model, step, words):
    with pytest.raises(InputError, match=words) as error:
        build(model, step)
    assert error.value.problems[0].hint


@pytest.mark.parametrize("name", list_presets("models"))
def test_every_preset_has_the_parameters_that_are_counted(name):
    """Two layers of it: blocks are alike, and the count is linear in them."""
    model = load_model(name).model_copy(update={"num_layers": 2})
    assert num_parameters(model) == parameter_counts(model).total
