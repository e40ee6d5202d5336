"""How published deployments were launched where nothing says so: settings that a case leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipewave.software.rules import Setting, holds, meets

FILE = Path(__file__).parent / "deployments" / "recipes.yaml"  # beside the engines it would count as one


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings by field name, and a note on each that is no default of the engine."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def without(self, said: frozenset[str]) -> Recipe:
        """What is left when some settings were given."""
        kept = {name: value for name, value in self.settings.items() if name not in said}
        return Recipe(kept, {name: self.notes[name] for name in kept})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a deployment is asked: its longest prompt and output, requests in flight, and whether its version is told
    (0 or 1)."""

    prompt: int
    output: int
    flight: int
    told: int = 1

    @property
    def sizes(self) -> Mapping[str, int]:
        """What the sums of a recipe may name."""
        return {"prompt": self.prompt, "output": self.output, "flight": self.flight}


@cache
def _recipes() -> Mapping[str, Any]:
    return dict(yaml.safe_load(FILE.read_text("utf-8")))


def assumed_version(engine: str) -> tuple[str, str]:
    """The version of published deployments of an engine that do not tell theirs, and a note; empty for an engine
    whose default version will do."""
    found = _recipes()["untold"].get(engine)
    return (found["version"], found["note"]) if found else ("", "")


def find(engine: str, version: str, setting: Setting, asked: Asked) -> Recipe:
    """What deployments of an engine's version in a setting set for what they are asked."""
    settings: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for recipe in _recipes()["recipes"]:
        if recipe["engine"] == engine and _holds(recipe, version, setting, asked):
            for name, value in recipe["set"].items():
                settings[name] = _size(value, asked.sizes)
                notes[name] = recipe.get("note") or notes.get(name, "")
    return Recipe(settings, notes)


def _holds(recipe: Mapping[str, Any], version: str, setting: Setting, asked: Asked) -> bool:
    unless: Mapping[str, Any] | None = recipe.get("unless")
    if unless is not None and holds(unless, version, setting):
        return False
    met = all(meets(asked, name, value) for name, value in recipe.get("asked", {}).items())
    return met and holds(recipe.get("when", {}), version, setting)


def _size(value: Any, known: Mapping[str, int]) -> Any:
    """A setting; a text of numbers and known sizes is their sum, and of several sums the largest ("8192 or prompt")."""
    if not isinstance(value, str):
        return value
    sums = [part.split(" + ") for part in value.split(" or ")]
    if not all(term in known or term.isdigit() for terms in sums for term in terms):
        return value
    return max(sum(known.get(term) or int(term) for term in terms) for terms in sums)
