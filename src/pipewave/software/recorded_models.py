"""What is recorded by a model's type: which versions of an engine have code for it, and how many drafts it accepts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.software.stacks import version_of

READS, ACCEPTANCE = (Path(__file__).parent / "deployments" / f"{name}.yaml" for name in ("reads", "acceptance"))


@cache
def first_version(engine: str, model_type: str) -> str:
    """The first version that is recorded to have a model's class; empty where none is."""
    return _known(engine).get(model_type, "")


@cache
def _known(engine: str) -> Mapping[str, str]:
    since = packaged.yaml(READS).get(engine, {}).get("since", {})
    return {model_type: str(version) for version, types in since.items() for model_type in types}


def unread(engine: str, version: str, model_type: str) -> str:
    """What to say of a model that a version of an engine is not recorded to have a class for; empty where it is, where
    no model is named, and of an engine without a list.
    """
    if not model_type or not _known(engine):
        return ""
    kind, first = packaged.yaml(READS)[engine]["kind"], first_version(engine, model_type)
    if not first:
        return f"{engine} {version} may not serve this model: no {kind} is recorded for {model_type}"
    if version_of(version) >= version_of(first):
        return ""
    return f"{engine} {version} may not serve this model: the {kind} for {model_type} is recorded from {first} on"


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
    usual: Mapping[str, Any] = packaged.yaml(ACCEPTANCE)[method]
    return next((one for one in usual.get("models", []) if model_type in one["model_type"]), usual)
