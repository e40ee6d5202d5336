"""Quantised forms of a model that a plan may choose: published checkpoints, and FP8 made of 16-bit weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.models import ModelSpec, load
from pipewave.models.quantization_config import ONLINE

FILE = Path(__file__).with_name("checkpoints.yaml")
PUBLISHED = "published"  # all that are listed


@cache
def _table() -> Mapping[str, Mapping[str, str]]:
    return {model: dict(listed) for model, listed in packaged.yaml(FILE).items()}


def published(model: ModelSpec) -> Mapping[str, str]:
    """Repositories that hold a quantised checkpoint of a built-in model, and their formats."""
    return _table().get(model.name, {})


def quantised(
    model: str | Path | Mapping[str, Any] | ModelSpec, asked: Sequence[str], ignore: tuple[str, ...] = ()
) -> dict[str, ModelSpec]:
    """The forms of a model that were asked for, by name: `fp8` (made while loading), a format (`awq`), a repository,
    or `published` for all listed ones. Raises BadInput for a word that names none.
    """
    if not asked:
        return {}
    spec = load(model, ignore=ignore)
    listed, out = published(spec), dict[str, ModelSpec]()
    for word in asked:
        chosen = {word: word} if word in ONLINE else {r: f for r, f in listed.items() if word in (PUBLISHED, r, f)}
        if not chosen and word != PUBLISHED:
            known = ", ".join([*ONLINE, *listed]) if listed else f"{', '.join(ONLINE)} (no checkpoint is listed)"
            raise BadInput(f"quantize = {word!r}: names no form of {spec.name}; known: {known}", field="quantize")
        for name, form in chosen.items():
            found = load(model, ignore=ignore, online=form)
            if found != spec:
                out[name] = found
    return out
