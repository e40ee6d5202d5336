"""How many drafted tokens are accepted where nothing is said: recorded probabilities by method and model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged

FILE = Path(__file__).parent / "deployments" / "acceptance.yaml"


@cache
def acceptance(method: str, model_type: str = "") -> tuple[float, ...]:
    """Probability that a draft of a method of speculation is accepted, where nothing is said: of each position, the
    last one for those that follow; a model's own where it has one.
    """
    found = _recorded(method, model_type)["acceptance"]
    return tuple(float(rate) for rate in (found if isinstance(found, list) else [found]))


@cache
def acceptance_range(method: str, model_type: str = "") -> tuple[float, float]:
    """Between what the probability lies, by text and sampling, in nine of ten cases."""
    low, high = _recorded(method, model_type)["range"]
    return float(low), float(high)


def _recorded(method: str, model_type: str) -> Mapping[str, Any]:
    usual: Mapping[str, Any] = packaged.yaml(FILE)[method]
    return next((one for one in usual.get("models", []) if model_type in one["model_type"]), usual)
