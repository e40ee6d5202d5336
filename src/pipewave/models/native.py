"""Mistral's own params.json in the words of a config.json.

Sources: `params.json` of Mistral's repositories on the hub; vLLM's `transformers_utils/configs/mistral.py`, which reads
the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.errors import UnsupportedModel

TELLING = ("dim", "n_layers", "n_heads")  # what such a file has, and no config.json
OWN_WORDS = {"hidden_size", "architectures"}
EXPERTS = {
    "num_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
    "first_k_dense_replace": "first_k_dense_replace",
    "route_every_n": "moe_layer_freq",
}
PLACED = ("moe", "quantization", "vision_encoder", "tied_embeddings", "model_type")
FP8 = "fp8_e4m3"


def in_hub_words(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same model as a config.json would state it; any other config as it is.

    Raises UnsupportedModel for a section of it that is not known.
    """
    if not all(name in raw for name in TELLING) or OWN_WORDS & set(raw):
        return raw
    text = {name: value for name, value in raw.items() if name not in PLACED}
    text |= {"model_type": "mistral4" if raw.get("kv_lora_rank") else "mistral"}
    text |= {"tie_word_embeddings": bool(raw.get("tied_embeddings", False)), "hidden_act": "silu"}
    text |= _experts(raw) | _quantisation(raw.get("quantization"))
    return _with_tower(text, raw.get("vision_encoder"))


def _experts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The routed experts, as wide as a dense block where their width is not said."""
    section = raw.get("moe")
    if not isinstance(section, Mapping) or not section:
        return {}
    given = {"expert_hidden_dim": raw.get("hidden_dim")} | dict(section)
    return {EXPERTS[name]: value for name, value in given.items() if name in EXPERTS}


def _quantisation(section: Any) -> dict[str, Any]:
    if not isinstance(section, Mapping) or not section:
        return {}
    if "quant_method" in section or "config_groups" in section:
        return {"quantization_config": dict(section)}
    if section.get("qformat_weight") != FP8:
        raise UnsupportedModel(
            f"quantization = {dict(section)!r}: of params.json, qformat_weight {FP8!r} or a section with "
            f"config_groups is modelled",
            field="quantization",
        )
    static = section.get("qscheme_act") == "TENSOR"
    return {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic"}}


def _with_tower(text: dict[str, Any], vision: Any) -> dict[str, Any]:
    if not isinstance(vision, Mapping) or not vision:
        return text
    own = {"model_type": "mistral3", "multimodal_projector_bias": bool(vision.get("adapter_bias", False))}
    own |= {"spatial_merge_size": vision.get("spatial_merge_size", 1), "quantization_config": None}
    own |= {name: text.pop(name) for name in ("quantization_config",) if name in text}
    return own | {"text_config": text, "vision_config": {**vision, "model_type": "pixtral"}}
