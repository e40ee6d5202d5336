"""Find a GPU by any of its names or by a spec file."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput, UnknownGPU
from pipewave.gpus.complete import complete
from pipewave.gpus.naming import key_of
from pipewave.gpus.spec import GPU, Source

_DATA = Path(__file__).parent / "data"
_FILE_SUFFIXES = (".yaml", ".yml", ".json")


def find(gpu: str | Path | GPU) -> GPU:
    """Return the GPU of this name, alias or spec file (.yaml, .yml, .json); a `GPU` is returned as it is.

    Raises:
        UnknownGPU: neither a known name nor a file; the message names the closest.
        BadFile, BadInput: the file cannot be read, or says something impossible.
    """
    if isinstance(gpu, GPU):
        return gpu
    if isinstance(gpu, str):
        stem = _index().get(key_of(gpu))
        if stem is not None:
            return _shipped(stem)
    elif not isinstance(gpu, Path):
        raise BadInput(f"gpu = {gpu!r} is not possible: give a name, a spec file or a GPU", field="gpu")
    return _from_file(gpu)


def names() -> tuple[str, ...]:
    """Names of all shipped GPUs, oldest architecture first."""
    return tuple(gpu.name for gpu in all_gpus())


@lru_cache(maxsize=1)
def all_gpus() -> tuple[GPU, ...]:
    """All shipped GPUs, by compute capability, then name."""
    found = (_shipped(stem) for stem in _raw())
    return tuple(sorted(found, key=lambda gpu: (gpu.compute_capability, gpu.name)))


def _from_file(given: str | Path) -> GPU:
    path = Path(given)
    if path.suffix.lower() not in _FILE_SUFFIXES:
        raise UnknownGPU(_unknown(str(given)), field="gpu")
    if not os.path.exists(path):  # unlike Path.exists, answers False for what can be no path at all
        raise UnknownGPU(f"unknown GPU {_short(str(given))}: no such file", field="gpu")
    from pipewave.gpus.userfile import load  # YAML is only needed here

    return load(path)


def _unknown(word: str) -> str:
    key = key_of(word)
    close = difflib.get_close_matches(key, _index(), n=5)
    close.sort(key=lambda other: abs(len(other) - len(key)))  # a wrong digit is likelier than a missing one
    hint = f"did you mean {_shipped(_index()[close[0]]).name}?" if close else "see `pipewave gpus`"
    return f"unknown GPU {_short(word)}: {hint} or pass a spec file (.yaml or .json)"


def _short(word: str) -> str:
    return repr(word if len(word) <= 80 else word[:77] + "...")


@lru_cache(maxsize=1)
def _raw() -> Mapping[str, Mapping[str, Any]]:
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(_DATA.glob("*.json"))}


@lru_cache(maxsize=1)
def _index() -> Mapping[str, str]:
    """Key of every spelling → stem of the data file; file names are spellings too."""
    return {key_of(word): stem for stem, raw in _raw().items() for word in (stem, raw["name"], *raw["aliases"])}


@cache
def _shipped(stem: str) -> GPU:
    raw = _raw()[stem]
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for fact in raw["facts"]:
        values |= fact["values"]
        sources |= dict.fromkeys(fact["values"], Source(fact["kind"], fact["note"], fact.get("date", "")))
    return complete(raw["name"], values, sources, tuple(raw["aliases"]))
