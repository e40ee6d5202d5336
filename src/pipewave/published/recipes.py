"""How published deployments were launched where nothing says so: settings that a case leaves out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.software.engine_rules import holds

FILE = Path(__file__).with_name("recipes.yaml")
UNVERSIONED = FILE.with_name("unversioned.yaml")
RELEASES = FILE.with_name("releases.yaml")
DAY = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)")
LONGEST = 1 << 30  # tokens


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
    return tuple(packaged.yaml(FILE))


@dataclass(frozen=True, slots=True)
class Requests:
    """What a deployment is sized for: how its requests are sent, its longest prompt, its requests at once, its longest
    output; whether its version is given, and whether a case says that it drafts."""

    mode: str
    prompt: int
    flight: int
    output: int = 0
    version_given: bool = True
    drafting: bool = False

    @property
    def sizes(self) -> Mapping[str, int]:
        """What the sums of a recipe may name."""
        return {"prompt": self.prompt, "output": self.output, "flight": self.flight}

    def suits(self, recipe: Mapping[str, Any]) -> bool:
        """Whether a recipe is meant for such requests; one that names no mode is of servers."""
        few = self.flight < recipe.get("flight_from", 0) or self.prompt < recipe.get("prompt_from", 0)
        least, most = recipe.get("lengths", (0, LONGEST))
        like = least <= min(self.prompt, self.output) and max(self.prompt, self.output) < most
        known = self.version_given == recipe.get("version_given", self.version_given)
        known &= self.drafting == recipe.get("drafting", self.drafting)
        return self.mode in recipe.get("modes", ("serve",)) and like and known and not few


def find(engine: str, version: str, setting: DeploymentFacts, requests: Requests) -> Recipe:
    """What deployments of an engine's version in a setting set for such requests."""
    settings: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for recipe in _recipes():
        if recipe["engine"] == engine and requests.suits(recipe) and _holds(recipe, version, setting):
            for name, value in recipe["set"].items():
                settings[name] = _size(value, requests.sizes)
                notes[name] = recipe.get("note") or notes.get(name, "")
    return Recipe(settings, notes)


def _holds(recipe: Mapping[str, Any], version: str, setting: DeploymentFacts) -> bool:
    unless: Mapping[str, Any] | None = recipe.get("unless")
    left_out = unless is not None and holds(unless, version, setting)
    return holds(recipe.get("when", {}), version, setting) and not left_out


def assumed_version(engine: str, model_type: str = "") -> tuple[str, str]:
    """The version of published deployments of an engine that do not tell theirs, and a note: for a model that it does
    not read yet the first version that does. Empty for an engine whose default version will do."""
    found = packaged.yaml(UNVERSIONED).get(engine)
    if found is None:
        return "", ""
    if first := found.get("models", {}).get(model_type):
        return first["version"], f"{first['version']} assumed, the first that reads the model"
    return found["version"], found["note"]


@cache
def releases(engine: str) -> Mapping[str, str]:
    """The days on which an engine's versions came out, the oldest first; empty where none is known."""
    return {version: str(day) for version, day in packaged.yaml(RELEASES).get(engine, {}).items()}


def release_after(engine: str, version: str) -> str:
    """The first release after the day that a nightly build's name holds, which it became; empty where it holds none or
    no later release is known."""
    found = DAY.search(version) if "nightly" in version else None
    built = "-".join(found.groups()) if found else "9"
    return next((name for name, day in releases(engine).items() if day >= built), "")


def _size(value: Any, known: Mapping[str, int]) -> Any:
    """A setting; a text that names a known size is a sum of numbers and known sizes, or of several sums the largest
    ("8192 or prompt")."""
    if not isinstance(value, str) or not set(value.split()) & set(known):
        return value
    sums = [part.split(" + ") for part in value.split(" or ")]
    return max(sum(known[term] if term in known else int(term) for term in terms) for terms in sums)
