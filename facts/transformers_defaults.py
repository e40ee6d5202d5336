"""Writes what transformers' config classes supply where a config.json leaves a field out.

Run it in an environment with transformers (configuration classes need no torch); pipewave need not be installed:

    python facts/transformers_defaults.py CONFIGS...

It writes `src/pipewave/data/transformers_defaults.json`: of every supported `model_type`, the defaults of the fields
that `pipewave.models` reads, the other names its class gives them, and the types of its sections. `CONFIGS` are folders
of config.json files: of each, the values that transformers derives for a field that is removed go to
`tests/models/data/transformers_removals.json`, where they are not the class's plain default.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pipewave"
DEFAULTS = PACKAGE / "data" / "transformers_defaults.json"
REMOVALS = ROOT / "tests" / "models" / "data" / "transformers_removals.json"
REFUSED = (ValueError, TypeError, AttributeError, LookupError, RuntimeError, ArithmeticError, StrictDataclassError)
SECTIONS = ("text_config", "vision_config", "audio_config")
# Read by pipewave, and not a default of a shape: loaders decide them.
LEFT_OUT = {"architectures", "model_type", "dtype", "is_encoder_decoder", *SECTIONS}


def fields_read() -> set[str]:
    """Names of config fields that the readers of pipewave mention."""
    source = "".join(path.read_text("utf-8") for path in sorted((PACKAGE / "models").glob("*.py")))
    source += (PACKAGE / "data" / "model_families.json").read_text("utf-8")
    synonyms = json.loads((PACKAGE / "data" / "config_fields.json").read_text("utf-8"))["synonyms"]
    return set(re.findall(r'"(\w+)"', source)) | {name for names in synonyms.values() for name in names}


def model_types() -> list[str]:
    """Types that pipewave has a row for, and that transformers knows."""
    families = json.loads((PACKAGE / "data" / "model_families.json").read_text("utf-8"))
    named = {*families["families"], *(name for names in families["aliases"].values() for name in names)}
    return sorted(named & set(CONFIG_MAPPING))


def sections(config: Any) -> dict[str, Any]:
    """The sections of a config object by name."""
    found = {name: getattr(config, name, None) for name in SECTIONS}
    return {name: value for name, value in found.items() if isinstance(value, transformers.PretrainedConfig)}


def row(cls: type[Any], read: set[str]) -> dict[str, Any]:
    """One class: defaults of the fields that are read, its other names for them, the types of its sections."""
    defaults = {}
    for field in dataclasses.fields(cls):
        made = field.default_factory
        value = field.default if made is dataclasses.MISSING else made()
        if field.name in read - LEFT_OUT and not isinstance(value, dict) and value is not dataclasses.MISSING:
            defaults[field.name] = value
    synonyms = {other: name for other, name in cls.attribute_map.items() if {other, name} & set(defaults)}
    found: dict[str, Any] = {"defaults": defaults}
    found |= {"synonyms": synonyms} if synonyms else {}
    try:
        inner = {name: section.model_type for name, section in sections(cls()).items()}
    except REFUSED as problem:  # a class that has no default instance supplies no section
        print(f"{cls.__name__}: {problem}", file=sys.stderr)
        inner = {}
    return found | ({"sections": inner} if inner else {})


def table(read: set[str]) -> dict[str, Any]:
    """Rows of all types, those of their sections included."""
    found: dict[str, Any] = {}
    waiting = [(name, CONFIG_MAPPING[name]) for name in model_types()]
    while waiting:
        name, cls = waiting.pop(0)
        if name in found or not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
            continue
        found[name] = row(cls, read)
        subs = getattr(cls, "sub_configs", {}).values()
        waiting += [(sub.model_type, sub) for sub in subs if getattr(sub, "model_type", "")]
        waiting += [(t, CONFIG_MAPPING[t]) for t in found[name].get("sections", {}).values() if t in CONFIG_MAPPING]
    return dict(sorted(found.items()))


def removals(config: dict[str, Any], read: set[str], rows: dict[str, Any]) -> dict[str, Any]:
    """What transformers makes of each field that is removed, by its path, where its class's default does not say it."""
    if config.get("model_type") not in CONFIG_MAPPING:
        return {}
    found: dict[str, Any] = {}
    for path in paths(config, read):
        less = copy.deepcopy(config)
        section = less[path[0]] if len(path) > 1 else less
        section.pop(path[-1])
        try:
            made = CONFIG_MAPPING[config["model_type"]].from_dict(less)
            owner = getattr(made, path[0]) if len(path) > 1 else made
            value = getattr(owner, path[-1], None)
        except REFUSED as problem:
            found[".".join(path)] = {"error": type(problem).__name__}
            continue
        plain = rows.get(owner.model_type, {}).get("defaults", {})
        synonyms = rows.get(owner.model_type, {}).get("synonyms", {})
        if isinstance(value, (bool, int, float, str, list)) and value != plain.get(synonyms.get(path[-1], path[-1])):
            found[".".join(path)] = {"value": value}
    return found


def paths(config: dict[str, Any], read: set[str]) -> Iterator[tuple[str, ...]]:
    """Fields of a config and of its sections."""
    for name, value in config.items():
        if name in read - LEFT_OUT:
            yield (name,)
        if name in SECTIONS and isinstance(value, dict):
            yield from ((name, inner) for inner in value if inner in read - LEFT_OUT)


def write(path: Path, document: dict[str, Any], rows: str) -> None:
    """One line a row."""
    head = {name: value for name, value in document.items() if name != rows}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in document[rows].items())
    path.write_text(json.dumps(head)[:-1] + f',\n  "{rows}": {{\n{lines}\n  }}\n}}\n', "utf-8")


def main(folders: list[str]) -> None:
    """Write both files."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    read = fields_read()
    rows = table(read)
    head = {
        "source": "huggingface/transformers, defaults of configuration classes",
        "version": transformers.__version__,
    }
    write(DEFAULTS, {**head, "types": rows}, "types")
    found = {}
    for folder in folders:
        for path in sorted([*Path(folder).glob("*/config.json"), *Path(folder).glob("*.json")]):
            name = path.parent.name if path.name == "config.json" else path.stem
            found[name] = removals(json.loads(path.read_text("utf-8")), read, rows)
    write(REMOVALS, {**head, "models": {name: each for name, each in found.items() if each}}, "models")


if __name__ == "__main__":
    main(sys.argv[1:])
