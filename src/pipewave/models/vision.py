"""Towers that share a GPU with the language model: all count in memory; those of images run where requests have any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipewave.models.config_fields import Fields, words
from pipewave.models.formulas import Part

_AXES = ("image_size", "patch_size")


@dataclass(frozen=True, slots=True)
class Tower:
    """A transformer over image patches and the projector behind it."""

    hidden: int
    inter: int
    heads: int
    layers: int
    patch: int  # side of a patch in pixels
    merge: int  # patches along a side that become one token of the language model
    image: int  # side in pixels of the image that the tower is made for
    params: int = 0  # all of its parameters
    gated: bool = False

    @property
    def patches(self) -> int:
        """Patches of one image of the tower's own size."""
        return max(self.image // self.patch, 1) ** 2

    @property
    def tokens(self) -> int:
        """Tokens one such image takes in the language model."""
        return max(self.patches // self.merge**2, 1)


def read_tower(section: Mapping[str, Any], outer: Fields, hidden: int) -> Tower:
    """The tower of a vision_config and its projector into a text model `hidden` wide; `outer` describes the latter."""
    fields, kind = _named(section), str(section.get("model_type", "")).removesuffix("_model").removesuffix("_vision")
    if isinstance(both := section.get("width"), Mapping):  # DeepSeek-OCR's two towers
        sam, clip = (_named(Fields(both).section(name)) for name in ("sam_vit_b", "clip-l-14-224"))
        image = {"image_size": fields["image_size"]} if "image_size" in fields else {}
        fields, kind = {f"clip_{name}": value for name, value in clip.items()} | sam | image, "sam_and_clip"
    part = Part("towers", kind, Fields(fields), outer, hidden=hidden)
    params = part["before"] + part["layers"] * part["layer"] + part["after"]
    sizes = {name: part[name] for name in ("inter", "heads", "layers", "patch", "merge", "image")}
    return Tower(part["width"], **sizes, params=params, gated=part["gated"])


def audio_params(section: Mapping[str, Any], hidden: int) -> int:
    """Parameters of an audio tower and its projector into a text model `hidden` wide; 0 for towers not known."""
    fields = Fields(section)
    return int(Part("audio", fields.text("model_type"), fields, hidden=hidden)["params"])


def _named(section: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by the names that rows use; of sizes along several axes, the first."""
    firsts = {name: value[0] if name in _AXES and isinstance(value, list) and value else value
              for name, value in section.items()}  # fmt: skip
    return {words("tower_synonyms").get(name, name): value for name, value in firsts.items()}
