"""How published deployments were launched where nothing says so: settings that a case leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipewave.software.rules import Setting, holds

FILE = Path(__file__).parent / "deployments" / "recipes.yaml"  # beside the engines it would count as one


ACCEPTANCE = FILE.with_name("acceptance.yaml")


@cache
def acceptance(method: str) -> float:
    """Probability that a draft of a method of speculation is accepted, where nothing is said."""
    return float(yaml.safe_load(ACCEPTANCE.read_text("utf-8"))[method]["acceptance"])


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings by field name, and a note on each that is no default of the engine."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def without(self, said: frozenset[str]) -> Recipe:
        """What is left when some settings were given."""
        kept = {name: value for name, value in self.settings.items() if name not in said}
        return Recipe(kept, {name: self.notes[name] for name in kept})


@cache
def _recipes() -> tuple[Mapping[str, Any], ...]:
    return tuple(yaml.safe_load(FILE.read_text("utf-8")))


def find(engine: str, version: str, setting: Setting, *, prompt: int, flight: int) -> Recipe:
    """What deployments of an engine's version in a setting set, for prompts of up to `prompt` tokens and `flight`
    requests at once."""
    settings: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for recipe in _recipes():
        if recipe["engine"] == engine and _holds(recipe, version, setting, flight):
            for name, value in recipe["set"].items():
                settings[name] = _size(value, {"prompt": prompt, "flight": flight})
                notes[name] = recipe.get("note") or notes.get(name, "")
    return Recipe(settings, notes)


def _holds(recipe: Mapping[str, Any], version: str, setting: Setting, flight: int) -> bool:
    unless: Mapping[str, Any] | None = recipe.get("unless")
    left_out = unless is not None and holds(unless, version, setting)
    return holds(recipe.get("when", {}), version, setting) and not left_out and flight >= recipe.get("flight_from", 0)


def _size(value: Any, known: Mapping[str, int]) -> Any:
    """A setting; a text that names a known size is a sum of numbers and known sizes."""
    if not isinstance(value, str) or not set(value.split(" + ")) & set(known):
        return value
    return sum(known[part] if part in known else int(part) for part in value.split(" + "))
