"""A user's own GPU from a YAML or JSON file: as few lines as a datasheet has numbers, or a known GPU with changes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import yaml

from pipewave.errors import BadFile, BadInput, MissingField, UnknownField
from pipewave.files import packaged
from pipewave.gpus import architectures
from pipewave.gpus.shipped import complete, shipped, stem_of
from pipewave.gpus.spec import GPU, LIMITS, NUMBER_FIELDS, NUMBERS, Kind, Source, checked

# Ratios between fields of one GPU, wide enough for every part since V100 ten times over and narrow enough for a slip
# of a thousand. A user's file that leaves them is refused, since no answer would say what is wrong.
RATIOS: tuple[tuple[str, str, float, float], ...] = tuple(map(tuple, packaged.shared(NUMBERS)["ratios"]))


class PlainLoader(yaml.SafeLoader):
    """YAML as what JSON can say: without anchors (a kilobyte would stand for gigabytes), aliases, tags (converters
    fail in their own ways) and dates. Raises yaml.YAMLError where it meets one of the former.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The node that begins with the next event, if it is a plain one."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None or event.tag not in (None, "!"):
            text = "anchors, aliases and tags are not read here: write the value itself"
            raise yaml.composer.ComposerError(None, None, text, event.start_mark)
        return super().compose_node(parent, index)


TIMESTAMP = "tag:yaml.org,2002:timestamp"
PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_MAX_BYTES = 1_000_000
_LONGEST_NAME = 200
_ABOUT = ("name", "base", "sources", "traits")


def load(path: Path) -> GPU:
    """Return the GPU that a file describes: `name`, numbers by field, optional `base` and `sources`.

    Without `base` the file needs `shipped.REQUIRED` and one 16-bit peak; the rest is derived. With it, every number
    not given is the base's, and what depends on a changed one follows as in `GPU.what_if`. `sources` maps a field to a
    note, or to {kind, note, date}; numbers without one are marked unverified.

    Raises:
        BadFile: unreadable, not YAML or JSON, not a mapping.
        BadInput or a subclass: naming the field, the value and what is permitted.
    """
    try:
        stat = path.stat()
    except OSError as problem:
        raise BadFile(f"cannot read GPU file {path}: {problem.strerror}", field="gpu") from problem
    return _load(path.resolve(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _load(path: Path, _mtime_ns: int, size: int) -> GPU:
    if not path.is_file() or size > _MAX_BYTES:
        raise BadFile(f"{path} is no GPU file: a small YAML or JSON file is expected", field="gpu")
    try:
        return read(path.read_text(encoding="utf-8-sig"), path)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadFile(f"cannot read GPU file {path}: {problem}", field="gpu") from problem


def read(text: str, path: Path, *, traits: bool = True) -> GPU:
    """The GPU that the text of a file describes, as `load` does; `traits`: whether it may bring an architecture."""
    if len(text) > _MAX_BYTES:
        raise BadFile(f"{path.name} is no GPU file: a small YAML or JSON file is expected", field="gpu")
    content = _parse(text, path)
    try:
        if "traits" in content and not traits:
            raise BadInput("traits are not read here: only GPUs of an architecture that is known", field="traits")
        return _build(content, path)
    except BadInput as problem:
        raise type(problem)(f"{path.name}: {problem.message}", field=problem.field) from problem


def _parse(text: str, path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(text) if path.suffix.lower() == ".json" else yaml.load(text, PlainLoader)
    except RecursionError as problem:
        raise BadFile(f"cannot read GPU file {path}: {problem}", field="gpu") from problem
    except (ValueError, yaml.YAMLError) as problem:
        raise BadFile(f"{path} is not valid: {' '.join(str(problem).split())}", field="gpu") from problem
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadFile(f"{path} must hold 'field: value' pairs, e.g. 'dram_gbps: 4800'", field="gpu")
    return content


def _build(content: Mapping[str, Any], path: Path) -> GPU:
    values = {key: value for key, value in content.items() if key not in _ABOUT}
    sources = _sources(content.get("sources") or {}, values, path.name)
    name = _name(content, path)
    if "traits" in content:
        architectures.register(checked("compute_capability", values.get("compute_capability")), content["traits"])
    if "base" in content:
        stem = stem_of(base) if isinstance(base := content["base"], str) else None
        if stem is None:
            raise BadInput(f"base = {base!r} is not possible: give a GPU that `pipewave gpus` lists", field="base")
        copy = shipped(stem).what_if(**values)
        gpu = replace(copy, name=name, aliases=(), origin=copy.base_gpu, sources={**copy.sources, **sources})
    else:
        gpu = complete(name, values, sources)
    check_plausible({field: getattr(gpu, field) for field in LIMITS}, values)
    return gpu


def _name(content: Mapping[str, Any], path: Path) -> str:
    name = content.get("name", f"{content['base']} ({path.stem})" if "base" in content else None)
    if name is None:
        raise MissingField("name is missing: say what the GPU is called", field="name")
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f"name = {name!r} is not possible: give some text", field="name")
    if len(name) > _LONGEST_NAME:
        raise BadInput(f"name: has {len(name):,} characters, more than {_LONGEST_NAME}", field="name")
    if (stem := stem_of(name)) is not None:
        raise BadInput(
            f"name = {name!r} is taken by {shipped(stem).name}, whose measured accuracy would be claimed for it: "
            "choose another",
            field="name",
        )
    return name.strip()


def _sources(given: object, values: Mapping[str, Any], file_name: str) -> dict[str, Source]:
    if not isinstance(given, dict):
        raise BadInput(f"sources = {given!r} is not possible: give 'field: note' pairs", field="sources")
    for key in given:
        if key not in NUMBER_FIELDS:
            raise UnknownField(f"sources names {key!r}, which is no GPU field", field="sources")
    own = dict.fromkeys(values, Source("unverified", f"given in {file_name}"))
    return own | {key: _source(key, said) for key, said in given.items()}


def _source(key: str, said: object) -> Source:
    if isinstance(said, str):
        return Source("datasheet", said)
    kinds = get_args(Kind)
    if not isinstance(said, dict) or said.get("kind", "datasheet") not in kinds:
        raise BadInput(
            f"sources.{key} = {said!r} is not possible: give a note, or kind ({', '.join(kinds)}), note and date",
            field="sources",
        )
    return Source(said.get("kind", "datasheet"), str(said.get("note", "")), str(said.get("date", "")))


def check_plausible(values: Mapping[str, Any], given: Collection[str]) -> None:
    """Raise BadInput where a `given` field stands to another as on no GPU, as after a slip of a unit."""
    for name, beside, low, high in RATIOS:
        value, other = values[name], values[beside]
        if {name, beside}.isdisjoint(given) or value is None or other is None or low <= value / other <= high:
            continue
        named, least, most = name, low * other, high * other
        if name not in given:
            named, beside, least, most, value, other = beside, name, value / high, value / low, other, value
        raise BadInput(
            f"{named} = {value:g} is not plausible beside {beside} = {other:g}: {least:.3g} to {most:.3g} would be; "
            "mend the unit, or give the other field as well",
            field=named,
        )
