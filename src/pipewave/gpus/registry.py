"""Find a GPU by any of its names or by a spec file, and show what is known of it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput, UnknownGPU
from pipewave.files import packaged
from pipewave.gpus.architectures import generation
from pipewave.gpus.shipped import key_of, raw_specs, shipped, spellings, stem_of
from pipewave.gpus.spec import GPU, NUMBERS, VALUE_FIELDS, Source

_FILE_SUFFIXES = (".yaml", ".yml", ".json")
_OWN: ContextVar[dict[str, GPU]] = ContextVar("own GPUs", default={})  # noqa: B039 - never written to


@contextmanager
def knowing(gpus: Iterable[GPU]) -> Iterator[None]:
    """Within it, `find` also knows these GPUs by their names: those of one question's own spec files."""
    token = _OWN.set({gpu.name: gpu for gpu in gpus})
    try:
        yield
    finally:
        _OWN.reset(token)


def find(gpu: str | Path | GPU) -> GPU:
    """A GPU by any of its names.

    Args:
        gpu: a name, an alias, a spec file (`.yaml`, `.yml`, `.json`), or a `GPU`, which is returned as it is.

    Returns:
        The GPU with its numbers and their sources.

    Raises:
        UnknownGPU: neither a known name nor a file; the message names the closest.
        BadFile, BadInput: the file cannot be read, or says something impossible.

    Source: of each number, in `GPU.sources`.
    """
    if isinstance(gpu, GPU):
        return gpu
    if isinstance(gpu, str) and (named := _OWN.get().get(gpu) or _named(gpu)):
        return named
    if not isinstance(gpu, str | Path):
        raise BadInput(f"gpu = {gpu!r} is not possible: give a name, a spec file or a GPU", field="gpu")
    return _from_file(gpu)


def names() -> tuple[str, ...]:
    """Names of all shipped GPUs, by compute capability, then name."""
    return tuple(gpu.name for gpu in all_gpus())


@cache
def all_gpus() -> tuple[GPU, ...]:
    """All shipped GPUs, by compute capability, then name."""
    return tuple(sorted(map(shipped, raw_specs()), key=lambda gpu: (gpu.compute_capability, gpu.name)))


@lru_cache(maxsize=1024)
def _named(name: str) -> GPU | None:
    stem = stem_of(name)
    return None if stem is None else shipped(stem)


def _from_file(given: str | Path) -> GPU:
    path = Path(given)
    if path.suffix.lower() not in _FILE_SUFFIXES:
        raise UnknownGPU(_unknown(str(given)), field="gpu")
    if not os.path.exists(path):  # unlike Path.exists, answers False for what can be no path at all
        raise UnknownGPU(f"unknown GPU {_short(str(given))}: no such file", field="gpu")
    from pipewave.gpus.userfile import load  # only a user's file needs a YAML parser

    return load(path)


def _unknown(word: str) -> str:
    key = key_of(word)
    close = difflib.get_close_matches(key, spellings(), n=5)
    # What is left unfinished comes first (H10: H100); else a wrong digit is likelier than a missing one.
    close.sort(key=lambda other: (not other.startswith(key), abs(len(other) - len(key))))
    close[:0] = sorted((name for name in spellings() if len(name) > 3 and name in key), key=len)[-1:]  # 8xH200
    if "," in word:
        return f"unknown GPU {_short(word)}: one is asked for here, only kernels and plans take several"
    hint = f"did you mean {shipped(spellings()[close[0]]).name}?" if close else "see `pipewave gpus`"
    return f"unknown GPU {_short(word)}: {hint} or pass a spec file (.yaml or .json)"


def _short(word: str) -> str:
    return repr(word if len(word) <= 80 else word[:77] + "...")


def of_generation(among: Iterable[str], capability: int) -> frozenset[str]:
    """Of GPUs by name, those that run the same kernels as parts of a compute capability."""
    wanted = generation(capability)
    return frozenset(name for name in among if generation(find(name).compute_capability) == wanted)


# What `pipewave gpus [NAME]` shows, as rows: one a GPU, or one a field with its source.

SUMMARY_FIELDS: tuple[str, ...] = tuple(packaged.shared(NUMBERS)["summary"])


def summary_rows() -> list[dict[str, Any]]:
    """Return one row per shipped GPU, keyed by SUMMARY_FIELDS; None = cannot run."""
    return [{field: getattr(gpu, field) for field in SUMMARY_FIELDS} for gpu in all_gpus()]


def field_rows(gpu: str | GPU) -> list[dict[str, Any]]:
    """Return one row per field of a GPU: field, value, unit, and kind, note and date of its source.

    Raises:
        UnknownGPU, BadFile, BadInput: as `find`.
    """
    spec, none = find(gpu), Source("unverified", "")
    return [{"field": field, "value": getattr(spec, field), "unit": unit_of(field)}
            | asdict(spec.sources.get(field, none)) for field in VALUE_FIELDS]  # fmt: skip


def of_one_capability(one: GPU, other: GPU) -> bool:
    """Whether two GPUs run the same kernels, compiled for one compute capability."""
    return one.compute_capability == other.compute_capability


def unit_of(field: str) -> str:
    """Return the unit that a field's name ends in, '' for counts and words; 'kb_per_sm' reads KB/SM."""
    if "_per_" in field:
        head, *rest = field.split("_per_")
        size = {"kb": "KB", "bytes": "B"}.get(head.rsplit("_", 1)[-1], "")
        return "/".join([size, *(word.upper() if word == "sm" else word for word in rest)])
    return str(packaged.shared(NUMBERS)["units"].get(field.rsplit("_", 1)[-1], ""))
