"""Vision towers that share a card with the language model: counted in memory, never run for text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.errors import UnsupportedModel
from pipewave.model.fields import Fields


def tower_params(section: Mapping[str, Any], hidden: int) -> int:
    """Parameters of a SigLIP tower and Gemma 3's projector into a text model `hidden` wide."""
    if section.get("model_type") != "siglip_vision_model":
        raise UnsupportedModel(
            f"vision_config.model_type = {section.get('model_type')!r}: only siglip_vision_model is counted",
            field="vision_config",
        )
    fields = Fields(section)
    width, inter = fields.integer("hidden_size"), fields.integer("intermediate_size")
    patch, image = fields.integer("patch_size"), fields.integer("image_size")
    embed = 3 * patch**2 * width + width + (image // patch) ** 2 * width
    layer = 4 * (width**2 + width) + 2 * width * inter + inter + width + 4 * width
    projector = width * hidden + width
    return embed + fields.integer("num_hidden_layers", high=4096) * layer + 2 * width + projector
