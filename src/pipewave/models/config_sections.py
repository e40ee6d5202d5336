"""Other layouts of a config: Mistral's params.json, and the text, vision and audio sections of a multimodal one.

Sources: `params.json` of Mistral's repositories on the hub; vLLM's `transformers_utils/configs/mistral.py`, which reads
the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipewave.errors import UnsupportedModel
from pipewave.models.config_fields import Fields, words
from pipewave.models.families import class_defaults, section_type
from pipewave.models.vision import Tower, audio_params, read_tower

TELLING = ("dim", "n_layers", "n_heads")  # what such a file has, and no config.json
OWN_WORDS = {"hidden_size", "architectures"}
PLACED = ("moe", "quantization", "vision_encoder", "tied_embeddings", "model_type")
FP8 = "fp8_e4m3"
DRAFT = "transformer_layer_config"  # where the speculators library states the layer of a drafting head
TEXT = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config", "llm", DRAFT)
VISION = ("vision_config", "vision_tower_config", "vit_config", "visual")
PARTS = ("attn_config", "ffn_config")  # where DBRX and MPT state a part's fields
# What the outer level states for the text where that says nothing.
HANDED_DOWN = ("torch_dtype", "dtype", "tie_word_embeddings", "vocab_size", "sliding_window")
# What the outer level of a drafting head says besides.
OF_A_DRAFT = ("architectures", "draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids")
IDLE = "vision tower: counted in memory; runs for requests with images"
HEARD, AUDIO = "audio tower: counted in memory, not run", "audio tower: neither counted nor run"


def from_params_json(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same model as a config.json would state it; any other config as it is. Raises UnsupportedModel."""
    if not all(name in raw for name in TELLING) or OWN_WORDS & set(raw):
        return raw
    text = {name: value for name, value in raw.items() if name not in PLACED}
    text |= {"model_type": "mistral4" if raw.get("kv_lora_rank") else "mistral"}
    text |= {"tie_word_embeddings": bool(raw.get("tied_embeddings", False)), "hidden_act": "silu"}
    text |= _experts(raw) | _quantisation(raw.get("quantization"))
    vision = raw.get("vision_encoder")
    if not isinstance(vision, Mapping) or not vision:
        return text
    own = {"model_type": "mistral3", "multimodal_projector_bias": bool(vision.get("adapter_bias", False))}
    own |= {"spatial_merge_size": vision.get("spatial_merge_size", 1)}
    own |= {"quantization_config": text.pop("quantization_config", None)}
    return own | {"text_config": text, "vision_config": {**vision, "model_type": "pixtral"}}


def _experts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The routed experts, as wide as a dense block where their width is not said."""
    section = raw.get("moe")
    if not isinstance(section, Mapping) or not section:
        return {}
    given = {"expert_hidden_dim": raw.get("hidden_dim")} | dict(section)
    names = words("params_json_experts")
    return {names[name]: value for name, value in given.items() if name in names}


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


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A text model's fields inside a config."""

    text: Mapping[str, Any]
    outer: Mapping[str, Any]
    vision: Mapping[str, Any] | None = None  # the tower's section, read once the text's width is known
    notes: tuple[str, ...] = ()  # what to tell
    audio: Mapping[str, Any] | None = None

    def tower(self, hidden: int) -> Tower | None:
        """The vision tower, if there is one."""
        if not self.vision:
            return None
        outer = str(self.outer.get("model_type"))
        kind = str(self.vision.get("model_type") or outer)
        given = {name: value for name, value in self.vision.items() if value is not None}
        stated = class_defaults(section_type(kind, "vision_config") or kind, given) | given
        around = class_defaults(outer, self.outer) | dict(self.outer)
        return read_tower({**stated, "model_type": kind}, Fields(around), hidden)


def unwrap(raw: Mapping[str, Any]) -> Wrapped:
    """Find the text model of a config; a config without one inside is the text model itself."""
    name = next((each for each in TEXT if isinstance(raw.get(each), Mapping)), None)
    if name is None:
        vision = next((raw[each] for each in VISION if isinstance(raw.get(each), Mapping)), None)
        own = {k: v for part in PARTS if isinstance(raw.get(part), Mapping) for k, v in raw[part].items()}
        own |= {k: v for k, v in raw.items() if k not in VISION}
        return Wrapped(own, raw, vision, (IDLE,) if vision else ())
    inner = unwrap(raw[name])
    vision = next((raw[each] for each in VISION if isinstance(raw.get(each), Mapping)), inner.vision)
    missing: tuple[str, ...] = ()
    if vision is None and not set(VISION) & set(raw) and (kind := section_type(str(raw.get("model_type")), VISION[0])):
        missing = (f"vision_config is missing: no tower is counted; transformers would add {kind} with its defaults",)
    handed = HANDED_DOWN + (OF_A_DRAFT if name == DRAFT else ())
    text = {k: raw[k] for k in handed if raw.get(k) is not None} | dict(inner.text)
    text.setdefault("model_type", raw.get("model_type"))
    if "quantization_config" not in text and raw.get("quantization_config") is not None:
        text["quantization_config"] = raw["quantization_config"]
    if isinstance(raw.get("tie_word_embeddings"), bool):  # the head belongs to the whole
        text["tie_word_embeddings"] = raw["tie_word_embeddings"]
    audio = raw["audio_config"] if isinstance(raw.get("audio_config"), Mapping) else inner.audio
    audio_notes = (HEARD if audio_params(audio, 1) else AUDIO,) if audio else ()
    return Wrapped(text, raw, vision, ((IDLE,) if vision else missing) + audio_notes, audio)
