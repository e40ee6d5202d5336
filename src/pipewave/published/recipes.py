"""What public launches of an engine, version and model set (`recipes.yaml`), for deployments that leave it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.software.engine_rules import facts_of
from pipewave.software.rules import frozen, holds

FILE = Path(__file__).with_name("recipes.yaml")
LONGEST = 1 << 30  # tokens


@dataclass(frozen=True, slots=True)
class Recipe:
    """What public launches set."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # by field of `Setup`, and `drafts`
    notes: Mapping[str, str] = field(default_factory=dict)  # on each

    def without(self, said: frozenset[str]) -> Recipe:
        """What is left when some settings were given."""
        kept = {name: value for name, value in self.settings.items() if name not in said}
        return Recipe(kept, {name: self.notes[name] for name in kept})


@cache
def every() -> tuple[Mapping[str, Any], ...]:
    """All recipes, in the order in which later ones override earlier ones."""
    return tuple(packaged.yaml(FILE))


@dataclass(frozen=True, slots=True)
class Requests:
    """What a deployment is sized for."""

    mode: str  # serve, estimate or offline
    prompt: int  # tokens of the longest
    flight: int  # requests at once
    output: int = 0  # tokens of the longest
    version_given: bool = True
    drafting: bool = False  # the deployment says that it drafts

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
    for recipe in every():
        if recipe["engine"] == engine and requests.suits(recipe) and _holds(recipe, version, setting):
            for name, value in recipe["set"].items():
                settings[name] = _size(value, requests.sizes)
                notes[name] = recipe.get("note") or notes.get(name, "")
    return Recipe(settings, notes)


def _holds(recipe: Mapping[str, Any], version: str, setting: DeploymentFacts) -> bool:
    unless: Mapping[str, Any] | None = recipe.get("unless")
    left_out = unless is not None and holds(frozen(unless), facts_of(version, setting))
    return holds(frozen(recipe.get("when", {})), facts_of(version, setting)) and not left_out


def _size(value: Any, known: Mapping[str, int]) -> Any:
    """A setting; a text that names a known size is a sum of numbers and known sizes, or of several sums the largest
    ("8192 or prompt").
    """
    if not isinstance(value, str) or not set(value.split()) & set(known):
        return value
    sums = [part.split(" + ") for part in value.split(" or ")]
    return max(sum(known[term] if term in known else int(term) for term in terms) for terms in sums)
