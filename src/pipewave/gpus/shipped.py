"""The GPUs that come with the package, one JSON file each with every number beside its source, and their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.gpus.complete import complete
from pipewave.gpus.spec import GPU, Source

# One GPU has many spellings: what drivers, frameworks, clusters and data sets call it, brought to one key.

_NOISE = frozenset({"nvidia", "tesla", "geforce", "generation", "gpu", "shared"})
_LISTED = re.compile(r"GPU \d+: (?P<name>.*?)(?: \(UUID: .*\))?$")
_IN_FILE_NAME = re.compile(r"device_name=(?P<name>[^,]+?)(?:,|\.json$|$)")


def key_of(name: str) -> str:
    """Return the key under which a spelling is looked up: lower case, no punctuation, no vendor words.

    Accepts a line of `nvidia-smi -L`, the names that NVML and torch give, vLLM's `device_name=NVIDIA_H200` and whole
    names of its tuned-configuration files, and Kubernetes product labels (a `-SHARED` suffix included). A MIG slice
    keeps its suffix and so never passes for the whole GPU.
    """
    for pattern in (_LISTED, _IN_FILE_NAME):
        if match := pattern.search(name):
            name = match["name"]
    words = re.split(r"[^a-z0-9.]+", name.lower())
    return "".join(word for word in words if word not in _NOISE)


# The GPUs that come with the package: one JSON file each, every number beside its source.

_DATA = Path(__file__).parent / "data"


def stem_of(name: str) -> str | None:
    """Return the file stem of the GPU that goes by this name, or None."""
    return spellings().get(key_of(name))


@cache
def shipped(stem: str) -> GPU:
    """Return the GPU of one data file."""
    raw = raw_specs()[stem]
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for fact in raw["facts"]:
        values |= fact["values"]
        sources |= dict.fromkeys(fact["values"], Source(fact["kind"], fact["note"], fact.get("date", "")))
    return complete(raw["name"], values, sources, tuple(raw["aliases"]))


@cache
def raw_specs() -> Mapping[str, Mapping[str, Any]]:
    """Return every data file by its stem, as parsed: building a `GPU` costs more and is done when one is asked for."""
    return {path.stem: packaged.document(path) for path in sorted(_DATA.glob("*.json"))}


@cache
def spellings() -> Mapping[str, str]:
    """Return key of every spelling → stem of the data file; the stem is a spelling too."""
    return {key_of(word): stem for stem, raw in raw_specs().items() for word in (stem, raw["name"], *raw["aliases"])}
