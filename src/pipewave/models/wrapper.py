"""The language model inside a multimodal config, and the tower beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipewave.models.fields import Fields
from pipewave.models.hearing import audio_params
from pipewave.models.vision import Tower, read_tower

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


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The text's fields, its tower (a section to be read once the text's width is known), and what to tell."""

    text: Mapping[str, Any]
    outer: Mapping[str, Any]
    vision: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    audio: Mapping[str, Any] | None = None

    def heard(self, hidden: int) -> int:
        """Parameters of an audio tower, 0 where there is none or it is not known."""
        return audio_params(self.audio, hidden) if self.audio else 0

    def tower(self, hidden: int) -> Tower | None:
        """The vision tower, if there is one."""
        if not self.vision:
            return None
        kind = self.vision.get("model_type") or self.outer.get("model_type")
        return read_tower({**self.vision, "model_type": kind}, Fields(self.outer), hidden)


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, Mapping) else {}


def unwrap(raw: Mapping[str, Any]) -> Wrapped:
    """Find the text model of a config; a config without one inside is the text model itself."""
    name = next((each for each in TEXT if isinstance(raw.get(each), Mapping)), None)
    if name is None:
        vision = next((raw[each] for each in VISION if isinstance(raw.get(each), Mapping)), None)
        own = {k: v for part in PARTS for k, v in _section(raw, part).items()}
        own |= {k: v for k, v in raw.items() if k not in VISION}
        return Wrapped(own, raw, vision, (IDLE,) if vision else ())
    inner = unwrap(raw[name])
    vision = next((raw[each] for each in VISION if isinstance(raw.get(each), Mapping)), inner.vision)
    handed = HANDED_DOWN + (OF_A_DRAFT if name == DRAFT else ())
    text = {k: raw[k] for k in handed if raw.get(k) is not None} | dict(inner.text)
    text.setdefault("model_type", raw.get("model_type"))
    if "quantization_config" not in text and raw.get("quantization_config") is not None:
        text["quantization_config"] = raw["quantization_config"]
    if isinstance(raw.get("tie_word_embeddings"), bool):  # the head belongs to the whole
        text["tie_word_embeddings"] = raw["tie_word_embeddings"]
    audio = raw["audio_config"] if isinstance(raw.get("audio_config"), Mapping) else inner.audio
    audio_notes = (HEARD if audio_params(audio, 1) else AUDIO,) if audio else ()
    return Wrapped(text, raw, vision, ((IDLE,) if vision else ()) + audio_notes, audio)
