"""A field that a config leaves out is what transformers makes of it, or the config is refused, or a note says so.

`data/transformers_removals.json` holds what transformers derives where its class's plain default does not say it;
`facts/transformers_defaults.py` writes it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipewave.errors import MissingField, PipewaveError
from pipewave.models.config import parse
from pipewave.models.families import DEFAULTS
from pipewave.models.load import FOLDER, read_json
from pipewave.models.shard import parameters
from pipewave.models.spec import ModelSpec
from tests.sampled import sampled

CLASSES = read_json(DEFAULTS)["types"]
REMOVED = read_json(Path(__file__).parent / "data" / "transformers_removals.json")["models"]
SECTIONS = ("text_config", "vision_config", "audio_config")
MIXTRAL = json.loads((FOLDER / "Mixtral-8x22B.json").read_text("utf-8"))


def paths(config: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Fields of a config and of its sections that transformers has a default for, or derives."""
    known = {name for row in CLASSES.values() for name in (*row["defaults"], *row.get("synonyms", {}))}
    yield from ((name,) for name in config if name in known)
    for section in SECTIONS:
        if isinstance(config.get(section), dict):
            yield from ((section, name) for name in config[section] if name in known)


def without(config: dict[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config less a field, and the object that held it."""
    less = copy.deepcopy(config)
    holder = less if len(path) == 1 else less[path[0]]
    del holder[path[-1]]
    return less, holder


def default(name: str, config: dict[str, Any], path: tuple[str, ...]) -> Any:
    """What transformers takes for a removed field; None where it takes none. LookupError where it refuses."""
    found = REMOVED.get(name, {}).get(".".join(path))
    if found is not None:
        return found["value"]  # a KeyError where there is an error instead
    outer = CLASSES[config["model_type"]]
    own = config[path[0]].get("model_type") if len(path) > 1 else config["model_type"]
    if len(path) > 1 and (own not in CLASSES or own == config["model_type"]):
        own = outer.get("sections", {}).get(path[0])
    row = CLASSES.get(own, {"defaults": {}})
    return row["defaults"].get(row.get("synonyms", {}).get(path[-1], path[-1]))


def model_or_none(config: dict[str, Any], name: str) -> ModelSpec | None:
    """A model without its notes, None where its config is refused."""
    try:
        return replace(parse(config, name), notes=())
    except PipewaveError:
        return None


def disagreements(name: str, config: dict[str, Any], every: int) -> Iterator[str]:
    """Fields whose absence is read otherwise than transformers reads it, in silence."""
    for path in list(paths(config))[len(name) % every :: every] if every > 1 else paths(config):
        less, holder = without(config, path)
        try:
            model, value = parse(less, name), default(name, config, path)
        except (PipewaveError, LookupError):
            continue  # refused, here or there
        if value is not None:
            holder[path[-1]] = value
        if model_or_none(less, name) != replace(model, notes=()) and not any(path[-1] in note for note in model.notes):
            yield f"{name}: {'.'.join(path)}"


@pytest.mark.parametrize("name", sampled(sorted(path.stem for path in FOLDER.glob("*.json")), 35))
def test_a_missing_field_of_a_built_in_model(name: str) -> None:
    config = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    assert not list(disagreements(name, config, 3))


def test_a_missing_field_of_a_published_model(corpus: Path) -> None:
    found: list[str] = []
    for path in sorted((corpus / "models").glob("*/config.json")):
        found += disagreements(path.parent.name, json.loads(path.read_text("utf-8")), 7)
    assert not found


def test_mixtral_without_its_experts_is_no_dense_model() -> None:
    less, _ = without(MIXTRAL, ("num_local_experts",))
    assert parameters(parse(less, "m")) == parameters(parse(MIXTRAL, "m")) > 140e9
    with pytest.raises(MissingField, match="experts"):
        parse(less | {"model_type": "ember"}, "m")


def test_a_hybrid_model_lists_its_layers() -> None:
    config = json.loads((FOLDER / "Nemotron-3-Super-120B-A12B.json").read_text("utf-8"))
    less, _ = without(config, ("hybrid_override_pattern",))
    with pytest.raises(MissingField, match="layer_types"):
        parse(less, "m")


def test_a_length_by_a_name_that_transformers_does_not_know_is_told() -> None:
    config = json.loads((FOLDER / "Command-R.json").read_text("utf-8"))
    less, _ = without(config, ("max_position_embeddings",))
    model = parse(less, "m")
    assert model.max_length == less["model_max_length"]
    assert any("model_max_length" in note for note in model.notes)
