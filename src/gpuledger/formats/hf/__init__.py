"""Hugging Face `config.json`, unmodified, to the keys of a `Model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...config.problems import nearest, shown
from ...errors import InputError, NotYetError
from . import gemma, gpt, llama
from .keys import Keys

FAMILIES: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "gpt2": gpt.gpt2,
    "gpt_bigcode": gpt.gpt_bigcode,
    "gpt_neox": gpt.gpt_neox,
    "opt": gpt.opt,
    "phi": gpt.phi,
    "bloom": gpt.bloom,
    "falcon": gpt.falcon,
    "RefinedWeb": gpt.falcon,
    "RefinedWebModel": gpt.falcon,
    "mpt": gpt.mpt,
    "llama": llama.llama,
    "mistral": llama.mistral,
    "qwen2": llama.qwen2,
    "qwen3": llama.qwen3,
    "phi3": llama.phi3,
    "olmo2": llama.olmo2,
    "stablelm": llama.stablelm,
    "stablelm_epoch": llama.stablelm,
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gemma3_text": gemma.gemma3_text,
}

# For files without model_type.
ARCHITECTURES = {
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTNeoXForCausalLM": "gpt_neox",
    "OPTForCausalLM": "opt",
    "PhiForCausalLM": "phi",
    "BloomForCausalLM": "bloom",
    "FalconForCausalLM": "falcon",
    "RWForCausalLM": "RefinedWebModel",
    "MPTForCausalLM": "mpt",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    "Olmo2ForCausalLM": "olmo2",
    "StableLmForCausalLM": "stablelm",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
}

EXPERT_KEYS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "ffn_config",
)
NO_DECODERS = (
    "albert",
    "bart",
    "bert",
    "clip",
    "deberta",
    "distilbert",
    "electra",
    "mamba",
    "marian",
    "mbart",
    "pegasus",
    "roberta",
    "rwkv",
    "siglip",
    "t5",
    "vit",
    "wav2vec2",
    "whisper",
    "xlm",
)


def model_from_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of a `Model` for a config.json; `where` names the file in messages.

    The text model of a multimodal config (its text_config) is read, and named so.
    Raises InputError for another kind of model or a broken file, NotYetError for what will come.
    """
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        family = {"gemma3": "gemma3_text"}.get(str(config.get("model_type")), "")
        inner = {"model_type": family, **nested}
        return {
            "name": f"{config.get('model_type', 'model')} (text model)",
            **model_from_config(inner, f"{where}: text_config"),
        }
    family = _family(config)
    _refuse_others(config, family, where)
    keys = Keys(config, where)
    values = FAMILIES[family](keys)
    keys.finish()
    return values


def _family(config: Mapping[str, Any]) -> str:
    if isinstance(config.get("model_type"), str):
        return str(config["model_type"])
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    return ARCHITECTURES.get(str(first), str(first))


def _refuse_others(config: Mapping[str, Any], family: str, where: str) -> None:
    readable = f"read are: {', '.join(FAMILIES)}"
    word = family.lower()
    if (
        "moe" in word
        or word in ("mixtral", "dbrx", "jamba", "llama4", "gpt_oss")
        or (family not in FAMILIES and any(config.get(key) for key in EXPERT_KEYS))
    ):
        raise NotYetError(
            f"{where}: {shown(family)} is a mixture of experts, which is not accounted for yet",
            readable,
        )
    if config.get("is_encoder_decoder") is True or word.startswith(NO_DECODERS):
        raise InputError(f"{where}: {shown(family)} is not a decoder-only transformer", readable)
    if family not in FAMILIES:
        close = nearest(family, FAMILIES)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(
            f"{where}: model_type {shown(family)} is not a known family", meant + readable
        )
