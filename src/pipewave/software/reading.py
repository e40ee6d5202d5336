"""Whether a version of an engine has code for a model: recorded lists, by the model's type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pipewave.files import packaged
from pipewave.software.stacks import version_of

FILE = Path(__file__).parent / "deployments" / "reads.yaml"


@cache
def first_version(engine: str, model_type: str) -> str:
    """The first version that is recorded to have a model's class; empty where none is."""
    return _known(engine).get(model_type, "")


@cache
def _known(engine: str) -> Mapping[str, str]:
    since = packaged.yaml(FILE).get(engine, {}).get("since", {})
    return {model_type: str(version) for version, types in since.items() for model_type in types}


def unread(engine: str, version: str, model_type: str) -> str:
    """What to say of a model that a version of an engine is not recorded to have a class for; empty where it is, where
    no model is named, and of an engine without a list.
    """
    if not model_type or not _known(engine):
        return ""
    kind, first = packaged.yaml(FILE)[engine]["kind"], first_version(engine, model_type)
    if not first:
        return f"{engine} {version} may not serve this model: no {kind} is recorded for {model_type}"
    if version_of(version) >= version_of(first):
        return ""
    return f"{engine} {version} may not serve this model: the {kind} for {model_type} is recorded from {first} on"
