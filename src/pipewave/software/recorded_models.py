"""What is recorded by a model's type: which versions of an engine have code for it, and how many drafts it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.software.stacks import version_of

READS, ACCEPTANCE = (Path(__file__).with_name(f"{name}.json") for name in ("reads", "acceptance"))


@cache
def first_versions(engine: str) -> Mapping[str, str]:
    """The first version that is recorded to have a class for a type of model; empty of an engine without a list."""
    since = packaged.shared(READS).get(engine, {}).get("since", {})
    return {model_type: str(version) for version, types in since.items() for model_type in types}


@cache
def unread(engine: str, version: str, model_type: str) -> str:
    """What to say of a model that a version is not recorded to have a class for; empty where it is."""
    known = first_versions(engine)
    if not model_type or not known or version_of(version) >= version_of(known.get(model_type, (1 << 30,))):
        return ""
    kind, first = packaged.shared(READS)[engine]["kind"], known.get(model_type)
    said = f"the {kind} for {model_type} is recorded from {first} on"
    return (
        f"{engine} {version} may not serve this model: {said if first else f'no {kind} is recorded for {model_type}'}"
    )


@cache
def acceptance(method: str, model_type: str = "") -> tuple[float, ...]:
    """Probability that the draft of each position is accepted; the last one for all that follow."""
    found = _accepted(method, model_type)["acceptance"]
    return tuple(float(rate) for rate in (found if isinstance(found, list) else [found]))


@cache
def acceptance_range(method: str, model_type: str = "") -> tuple[float, float]:
    """Between what the probability lies, by text and sampling, in nine of ten cases."""
    low, high = _accepted(method, model_type)["range"]
    return float(low), float(high)


def _accepted(method: str, model_type: str) -> Mapping[str, Any]:
    usual: Mapping[str, Any] = packaged.shared(ACCEPTANCE)[method]
    return next((one for one in usual.get("models", []) if model_type in one["model_type"]), usual)
