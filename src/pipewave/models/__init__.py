"""Models: a Hugging Face config.json → layers as data → parameters, bytes and kernel calls."""

from __future__ import annotations

from pipewave.models.attention_spec import Gqa, Mla
from pipewave.models.load import ModelSource, load, names
from pipewave.models.precision import Linear, Precision
from pipewave.models.spec import Layer, Mlp, ModelSpec, Moe

__all__ = ["Gqa", "Layer", "Linear", "Mla", "Mlp", "ModelSource", "ModelSpec", "Moe", "Precision", "load", "names"]
