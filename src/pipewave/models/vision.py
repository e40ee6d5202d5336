"""Vision towers that share a card with the language model: counted in memory, never run for text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.errors import UnsupportedModel
from pipewave.models.fields import Fields


def tower_params(section: Mapping[str, Any], outer: Fields, hidden: int) -> int:
    """Parameters of a vision tower and its projector into a text model `hidden` wide; `outer` describes the projector.

    Raises UnsupportedModel for a tower that is not counted.
    """
    kind = section.get("model_type")
    if not isinstance(kind, str) or kind not in _TOWERS:
        raise UnsupportedModel(
            f"vision_config.model_type = {kind!r}: only {', '.join(_TOWERS)} are counted", field="vision_config"
        )
    return _TOWERS[kind](Fields(section), outer, hidden)


def _siglip(fields: Fields, _: Fields, hidden: int) -> int:
    """SigLIP and Gemma 3's projector."""
    width, inter = fields.integer("hidden_size"), fields.integer("intermediate_size")
    patch, image = fields.integer("patch_size"), fields.integer("image_size")
    embed = 3 * patch**2 * width + width + (image // patch) ** 2 * width
    layer = 4 * (width**2 + width) + 2 * width * inter + inter + width + 4 * width
    projector = width * hidden + width
    return embed + fields.integer("num_hidden_layers", high=4096) * layer + 2 * width + projector


def _pixtral(fields: Fields, outer: Fields, hidden: int) -> int:
    """Pixtral, and Mistral 3's projector, which merges patches before two matrices."""
    width, inter = fields.integer("hidden_size"), fields.integer("intermediate_size")
    layer = 4 * width**2 + 3 * width * inter + 2 * width
    embed = 3 * fields.integer("patch_size") ** 2 * width + width
    merge = outer.integer("spatial_merge_size") ** 2 * width**2 + width
    biases = 2 * hidden if outer.flag("multimodal_projector_bias") else 0
    for name in ("projector_hidden_act", "vision_feature_layer"):
        outer.get(name)  # changes no count
    return embed + fields.integer("num_hidden_layers", high=4096) * layer + merge + (width + hidden) * hidden + biases


_TOWERS = {"siglip_vision_model": _siglip, "pixtral": _pixtral}
