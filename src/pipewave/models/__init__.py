"""Models: a Hugging Face config.json → layers as data → parameters, bytes and kernel calls."""

from __future__ import annotations

from pipewave.models.load import load, names
from pipewave.models.spec import Gqa, Layer, Linear, Mla, Mlp, ModelSpec, Moe, Precision

__all__ = ["Gqa", "Layer", "Linear", "Mla", "Mlp", "ModelSpec", "Moe", "Precision", "load", "names"]
