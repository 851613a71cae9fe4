"""Inputs that must be refused, as data: what a run is asked with, and files that hold it.

`malformed_inputs(folder)` writes the files and yields (name, arguments of `gpuledger estimate`).
"""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HF = Path(__file__).parent / "data" / "hf"

RUN: dict[str, Any] = {
    "model": {
        "num_layers": 2, "hidden_size": 64, "num_heads": 8, "num_kv_heads": 8, "head_dim": 8,
        "ffn_hidden_size": 256, "vocab_size": 128, "max_position_embeddings": 64,
        "norm": "layernorm", "activation": "gelu", "positions": "learned",
        "qkv_projection": "fused", "bias": True, "tie_embeddings": True,
        "dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0,
    },
    "training": {
        "seq_len": 64, "micro_batch_size": 2, "global_batch_size": 16, "precision": "bf16-mixed",
        "optimizer": "adamw", "attention": "flash", "recompute": "none", "loss": "cross_entropy",
    },
    "parallel": {"zero_stage": 1},
    "cluster": {"gpu": "h100-80gb-sxm", "gpus": 8},
}

WHOLE_NUMBERS = (
    "model.num_layers", "model.hidden_size", "model.num_heads", "model.vocab_size",
    "training.seq_len", "training.micro_batch_size", "training.global_batch_size",
    "parallel.tp", "parallel.zero_stage", "cluster.gpus")
NOT_WHOLE: dict[str, Any] = {
    "negative": -3, "fraction": 2.5, "text": "many", "true": True, "list": [1], "mapping": {"a": 1},
    "huge": 10**18, "quoted": "8"}

WORDS = (
    "model.norm", "model.activation", "model.positions", "model.qkv_projection",
    "training.precision", "training.optimizer", "training.attention", "training.loss",
    "training.recompute", "parallel.framework")
NOT_WORDS: dict[str, Any] = {"misspelled": "flsah", "number": 3, "list": ["none"]}

FRACTIONS = ("model.dropout", "model.attention_dropout", "training.momentum")
NOT_FRACTIONS: dict[str, Any] = {"negative": -0.1, "one": 1.0, "text": "a tenth", "null": None}

FLAGS = ("model.tie_embeddings", "training.amsgrad", "parallel.sequence_parallel")

# One edit, or several, that make a combination wrong.
COMBINATIONS: dict[str, dict[str, Any]] = {
    "heads do not divide": {"model.num_kv_heads": 3},
    "71 heads over 8": {"model.num_heads": 71},
    "more kv heads than heads": {"model.num_kv_heads": 16},
    "shared norm without parallel residual": {"model.shared_norm": True},
    "odd rotary dim": {"model.positions": "rotary", "model.rotary_dim": 5},
    "rotary dim beyond head": {"model.positions": "rotary", "model.rotary_dim": 16},
    "rotary dim without rotary": {"model.rotary_dim": 4},
    "odd head with rotary": {"model.positions": "rotary", "model.head_dim": 7},
    "interval without window": {"model.full_attention_interval": 2},
    "fused gate without gate": {"model.gate_up_projection": "fused"},
    "offset without learned": {"model.positions": "rotary", "model.learned_position_offset": 2},
    "norm bias of rmsnorm": {"model.norm": "rmsnorm", "model.bias": {
        "query": True, "key_value": True, "attention_out": True, "mlp_up": True, "mlp_down": True,
        "norm": True}},
    "half of a fused bias": {"model.bias": {
        "query": True, "key_value": False, "attention_out": True, "mlp_up": True, "mlp_down": True,
        "norm": True}},
    "incomplete bias": {"model.bias": {"query": True}},
    "post norm and parallel residual": {
        "model.parallel_residual": True, "model.norm_position": "post"},
    "alibi with flash": {"model.positions": "alibi"},
    "alibi with window": {"model.positions": "alibi", "model.sliding_window": 8},
    "sequence beyond positions": {"training.seq_len": 65},
    "global batch not a multiple": {"training.global_batch_size": 24},
    "global batch below one step": {"training.global_batch_size": 2},
    "global batch not of micro batch": {"training.global_batch_size": 15},
    "flash in fp32": {"training.precision": "fp32"},
    "cudnn in tf32": {"training.precision": "tf32", "training.attention": "cudnn"},
    "flash on a T4": {"cluster.gpu": "t4", "training.precision": "fp16-mixed"},
    "cudnn on AMD": {"cluster.gpu": "mi300x", "training.attention": "cudnn"},
    "amsgrad of sgd": {"training.optimizer": "sgd", "training.amsgrad": True},
    "momentum of adamw": {"training.momentum": 0.9},
    "fused lion": {"training.optimizer": "lion", "training.optimizer_implementation": "fused"},
    "foreach muon": {"training.optimizer": "muon", "training.optimizer_implementation": "foreach"},
    "fused adafactor": {
        "training.optimizer": "adafactor", "training.optimizer_implementation": "fused"},
    "chunks of a whole loss": {"training.loss_chunks": 4},
    "more chunks than tokens": {"training.loss": "chunked", "training.loss_chunks": 1000},
    "keeping logits that never are": {"training.loss": "chunked", "training.keep_logits": True},
    "recompute every zero": {"training.recompute": {"every": 0}},
    "recompute every with a typo": {"training.recompute": {"evry": 2}},
    "soft cap in flash": {"model.attention_softcap": 50.0},
    "logit cap in a fused loss": {"model.logits_softcap": 30.0, "training.loss": "fused_linear"},
    "head too wide for flash": {"model.head_dim": 512},
    "vpp without pp": {"parallel.vpp": 2},
    "sequence parallel without tp": {"parallel.sequence_parallel": True},
    "dp that does not fit": {"parallel.dp": 3},
    "tp that does not divide": {"parallel.tp": 3},
    "context parallel of 64 tokens": {"parallel.cp": 8, "training.seq_len": 60},
    "twelve GPUs on nodes of eight": {"cluster.gpus": 12},
    "unknown GPU": {"cluster.gpu": "h1000"},
    "unknown model": {"model": "gpt-5"},
    "unknown cluster": {"cluster": "dgx-z100"},
    "model is a number": {"model": 7},
    "training is a list": {"training": ["seq_len"]},
    "cluster is null": {"cluster": None},
    "unknown key of model": {"model.hidden_sise": 64},
    "unknown key of training": {"training.seqlen": 64},
    "unknown part": {"trainning": {}},
    "negative bandwidth": {"cluster.network_bytes_per_second": -1.0},
}

TEXTS: dict[str, str] = {
    "empty.yaml": "", "blank.yaml": "  \n\n", "comment.yaml": "# nothing\n", "null.yaml": "~\n",
    "list.yaml": "- model\n", "word.yaml": "gpt2\n", "number.json": "7", "list.json": "[]",
    "neither.yaml": "name: x\n", "unclosed.yaml": "model: {a: 1\n", "tab.yaml": "model:\n\ta: 1\n",
    "indent.yaml": "model: gpt2\n  training: 1\n", "unclosed.json": '{"model": ', "empty.json": "",
    "trailing.json": '{"model": "gpt2",}', "twice.yaml": "model: gpt2\nmodel: gpt2\n",
    "twice.json": '{"model": "gpt2", "model": "gpt2"}', "alias.yaml": "a: &x 1\nmodel: *x\n",
    "tag.yaml": "model: !!python/object/apply:os.system ['true']\n",
    "documents.yaml": "model: gpt2\n---\nmodel: gpt2\n", "key.yaml": "? [1, 2]\n: model\n",
    "nan.yaml": "model: gpt2\ntraining: {momentum: .nan}\n", "nan.json": '{"model": NaN}',
    "inf.yaml": "model: gpt2\ncluster: {network_bytes_per_second: .inf}\n",
    "infinity.json": '{"model": "gpt2", "training": {"seq_len": Infinity}}',
    "digits.yaml": f"model: gpt2\ntraining: {{seq_len: {'9' * 5000}}}\n",
    "digits.json": f'{{"model": "gpt2", "training": {{"seq_len": {"9" * 5000}}}}}',
    "bomb.yaml": "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)),
    "deep.yaml": "[" * 100_000, "deep-map.yaml": "{a: " * 50_000,
    "deep.json": "[" * 100_000 + "]" * 100_000, "wide.yaml": "x: 1\n" * 200_000,
    "keys.yaml": "".join(f"key{n}: 1\n" for n in range(20_000)) + "model: gpt2\n",
    "exponent.yaml": "model: gpt2\ncluster: {gpu: h100, gpus: 8e0}\n",
    "octal.yaml": "model: gpt2\ncluster: {gpu: h100, gpus: 0x8}\n",
    "clock.yaml": "model: gpt2\ncluster: {gpu: h100, gpus: 1:30}\n",
    "yes.yaml": "model: gpt2\ntraining: {amsgrad: yes}\ncluster: {gpu: h100, gpus: 1}\n",
}

BYTES: dict[str, bytes] = {
    "elf.yaml": b"\x7fELF\x02\x01\x01" + bytes(64), "utf16.yaml": "model: gpt2\n".encode("utf-16"),
    "latin.yaml": b"model: gpt2\nname: caf\xe9\n", "zeros.json": bytes(1000),
    "large.json": b'{"model": "' + b"x" * 2**21 + b'"}', "gzip.yaml": b"\x1f\x8b\x08\x00" * 50,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "no sizes": {"model_type": "llama"},
    "no type": {"architectures": ["SomethingForCausalLM"], "hidden_size": 64},
    "type is a number": {"model_type": 3},
    "no architectures": {"architectures": []},
    "text_config of nothing": {"model_type": "llava", "text_config": {}},
    "misspelled type": {"model_type": "lama", "hidden_size": 64},
}
CONFIG_EDITS: dict[str, tuple[str, dict[str, Any]]] = {
    "negative hidden size": ("llama-3-8b", {"hidden_size": -4096}),
    "heads as text": ("llama-3-8b", {"num_attention_heads": "32"}),
    "fractional layers": ("llama-3-8b", {"num_hidden_layers": 32.5}),
    "heads that do not divide": ("llama-3-8b", {"num_key_value_heads": 7}),
    "71 heads of a LLaMA": ("llama-3-8b", {"num_attention_heads": 71, "num_key_value_heads": 71}),
    "71 heads of a GPT-2": ("gpt2", {"n_head": 71}),
    "71 heads of an MPT": ("mpt-7b", {"n_heads": 71}),
    "unknown activation": ("llama-3-8b", {"hidden_act": "mish"}),
    "bias as text": ("llama-3-8b", {"attention_bias": "no"}),
    "vocabulary of null": ("llama-3-8b", {"vocab_size": None}),
    "dropout above one": ("gpt2", {"resid_pdrop": 1.5}),
    "dropout as text": ("gpt2", {"attn_pdrop": "0.1"}),
    "cross attention": ("gpt2", {"add_cross_attention": True}),
    "no layers": ("gpt2", {"n_layer": 0}),
    "post norm OPT": ("opt-1.3b", {"do_layer_norm_before": False}),
    "normed queries of Phi": ("phi-2", {"qk_layernorm": True}),
    "clipped queries of MPT": ("mpt-7b", {"attn_config": {"clip_qkv": 8}}),
    "sliding upper layers": ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 14}),
    "irregular layers": ("gemma-2-2b", {"layer_types": ["full_attention"] + 25 * [
        "sliding_attention"]}),
    "encoder and decoder": ("gpt2", {"model_type": "bart", "is_encoder_decoder": True}),
}

MODEL_ON_H100 = ("gpt2", "--gpu", "h100-80gb-sxm", "--gpus", "8")
COMMANDS: dict[str, tuple[str, ...]] = {
    "no GPU": ("gpt2", "--gpus", "8"),
    "no number of GPUs": ("gpt2", "--gpu", "h100"),
    "unknown preset": ("gpt7", "--gpu", "h100", "--gpus", "8"),
    "name of a hub": ("meta-llama/Llama-9-8B", "--gpu", "h100", "--gpus", "8"),
    "empty name": ("", "--gpu", "h100", "--gpus", "8"),
    "missing file": ("no-such-run.yaml",),
    "missing file in a folder": ("./no/such/run.json",),
    "a name of 5000 letters": ("x" * 5000,),
    "a name with a zero byte": ("gpt2\0",),
    "a parent folder": ("../models/gpt2",),
    "unknown precision": (*MODEL_ON_H100, "--precision", "int3"),
    "unknown stage": (*MODEL_ON_H100, "--zero", "4"),
    "no GPUs": ("gpt2", "--gpu", "h100", "--gpus", "0"),
    "negative length": (*MODEL_ON_H100, "--seq-len", "-1"),
    "unknown recompute": (*MODEL_ON_H100, "--recompute", "some"),
    "recompute every none": (*MODEL_ON_H100, "--recompute", "every:0"),
    "set nothing": (*MODEL_ON_H100, "--set", "loss"),
    "set no key": (*MODEL_ON_H100, "--set", "=chunked"),
    "set an unknown key": (*MODEL_ON_H100, "--set", "los=chunked"),
    "set an unknown dotted key": (*MODEL_ON_H100, "--set", "training.los=chunked"),
    "set a wrong type": (*MODEL_ON_H100, "--set", "model.num_layers=twelve"),
    "set broken YAML": (*MODEL_ON_H100, "--set", "bias={query: true"),
    "set an alias": (*MODEL_ON_H100, "--set", "loss=*x"),
    "tp beyond the GPUs": (*MODEL_ON_H100, "--tp", "16"),
    "pp of zero": (*MODEL_ON_H100, "--pp", "0"),
    "an option without number": (*MODEL_ON_H100[:-1], "eight"),
    "an option without value": (*MODEL_ON_H100, "--zero"),
    "an unknown option": (*MODEL_ON_H100, "--hbm", "80"),
    "two runs": ("gpt2", *MODEL_ON_H100),
    "no run": (),
}


def malformed_inputs(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Every malformed input, its files written into this folder."""
    yield from _edited_runs(folder)
    for name, text in TEXTS.items():
        yield f"file {name}", [_written(folder / name, text.encode())]
    for name, data in BYTES.items():
        yield f"file {name}", [_written(folder / name, data)]
    (folder / "folder.yaml").mkdir(exist_ok=True)
    yield "folder", [str(folder / "folder.yaml")]
    yield "folder without config", [str(folder)]
    yield from _configs(folder)
    for name, arguments in COMMANDS.items():
        yield f"command {name}", list(arguments)


def _edited_runs(folder: Path) -> Iterator[tuple[str, list[str]]]:
    edits = {f"{key} {kind}": {key: value} for keys, values in (
        (WHOLE_NUMBERS, NOT_WHOLE), (WORDS, NOT_WORDS), (FRACTIONS, NOT_FRACTIONS),
        (FLAGS, {"text": "yes", "number": 1})) for key in keys for kind, value in values.items()}
    for name, edit in (edits | COMBINATIONS).items():
        text = json.dumps(edited(RUN, edit))
        yield f"run {name}", [_written(folder / f"run-{name}.json", text.encode())]


def _configs(folder: Path) -> Iterator[tuple[str, list[str]]]:
    tail = ["--gpu", "h100-80gb-sxm", "--gpus", "8"]
    configs = dict(CONFIGS)
    for name, (base, edit) in CONFIG_EDITS.items():
        configs[name] = json.loads((HF / f"{base}.json").read_text()) | edit
    for name, config in configs.items():
        path = folder / f"config-{name}.json"
        yield f"config {name}", [_written(path, json.dumps(config).encode()), *tail]
    for path in (*sorted(HF.glob("other-*.json")), HF / "opt-350m.json"):
        yield f"config {path.stem}", [str(path), *tail]


def edited(run: dict[str, Any], edit: dict[str, Any]) -> dict[str, Any]:
    """A copy of a run with values put at dotted keys."""
    copy: dict[str, Any] = json.loads(json.dumps(run))
    for path, value in edit.items():
        *parents, last = path.split(".")
        keys = copy
        for parent in parents:
            keys = keys[parent]
        keys[last] = value
    return copy


def _written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)
