"""Audio towers beside a language model: counted in memory, not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipewave.models.config_fields import Fields


def audio_params(section: Mapping[str, Any], hidden: int) -> int:
    """Parameters of an audio tower and its projector into a text model `hidden` wide; 0 for towers not known."""
    fields = Fields(section)
    return _FRONTS.get(fields.text("model_type"), _unknown)(fields, hidden)


def _layers(fields: Fields) -> int:
    """Whisper's encoder layers, whose keys have no bias, and the norm after them."""
    width, inter = fields.integer("d_model", 1280), fields.integer("encoder_ffn_dim", 5120)
    layer = 4 * width * width + 3 * width + 2 * width * inter + inter + width + 4 * width
    return fields.integer("encoder_layers", 32) * layer + 2 * width


def _whisper(fields: Fields) -> int:
    """Two convolutions over time and the layers."""
    width, bins = fields.integer("d_model", 1280), fields.integer("num_mel_bins", 128)
    return 3 * width * (bins + width) + 2 * width + _layers(fields)


def _qwen2(fields: Fields, hidden: int) -> int:
    """Qwen2-Audio: Whisper's encoder with its table of positions, and one map."""
    width = fields.integer("d_model", 1280)
    return _whisper(fields) + fields.integer("max_source_positions", 1500) * width + width * hidden + hidden


def _qwen2_omni(fields: Fields, hidden: int) -> int:
    """Qwen2.5-Omni: computed positions, two learned marks, and one map."""
    out = fields.integer("output_dim", hidden)
    return _whisper(fields) + 2 * out + fields.integer("d_model", 1280) * out + out


def _qwen3_omni(fields: Fields, hidden: int) -> int:
    """Qwen3-Omni: three convolutions over time and frequency, biases on all maps, two maps after the layers."""
    width, inner = fields.integer("d_model", 1280), fields.integer("downsample_hidden_size", 480)
    out, rows = fields.integer("output_dim", hidden), -(-fields.integer("num_mel_bins", 128) // 8)
    convolutions = 9 * inner * (1 + 2 * inner) + 3 * inner + inner * rows * width
    keys = fields.integer("encoder_layers", 32) * width
    return convolutions + _layers(fields) + keys + width * width + width + width * out + out


def _voxtral(fields: Fields, hidden: int) -> int:
    """Voxtral: Whisper's encoder with its table of positions, four frames a token, two maps without bias."""
    width, inter = fields.integer("hidden_size", 1280), fields.integer("intermediate_size", 5120)
    layers, bins = fields.integer("num_hidden_layers", 32), fields.integer("num_mel_bins", 128)
    inner = Fields({"d_model": width, "encoder_ffn_dim": inter, "encoder_layers": layers, "num_mel_bins": bins})
    positions = fields.integer("max_source_positions", 1500) * width
    return _whisper(inner) + positions + inter * hidden + hidden * hidden


def _unknown(_fields: Fields, _hidden: int) -> int:
    return 0


_FRONTS: dict[str, Callable[[Fields, int], int]] = {
    "qwen2_audio_encoder": _qwen2,
    "qwen2_5_omni_audio_encoder": _qwen2_omni,
    "qwen3_omni_moe_audio_encoder": _qwen3_omni,
    "voxtral_encoder": _voxtral,
}
