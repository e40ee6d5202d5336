"""What public launches of an engine, version and model set (`recipes.json`), for deployments that leave it out.

Conditions are those of the engines' own rules (`pipewave.software.rules`), over the same facts and `Requests`; of the
rules that hold and set a field, the first counts. A number of requests, tokens or ranks may be a sum of numbers,
`prompt`, `output`, `flight` and the deployment's `tp`, or of several sums the largest ("8192 or prompt"). `drafts`:
tokens that MTP heads draft, where a deployment names the method alone; `speculative`: what drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pipewave.files import packaged
from pipewave.simulate.setup import Setup
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.software.engine_rules import facts_of
from pipewave.software.rules import Case, frozen, typed

FILE = Path(__file__).with_name("recipes.json")
SIZES = ("prompt", "output", "flight", "tp")  # that a sum may name


@dataclass(frozen=True, slots=True)
class Recipe:
    """What public launches set."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # by field of `Setup`, and `drafts`
    notes: Mapping[str, str] = field(default_factory=dict)  # on each

    def without(self, said: frozenset[str]) -> Recipe:
        """What is left when some settings were given."""
        kept = {name: value for name, value in self.settings.items() if name not in said}
        return Recipe(kept, {name: self.notes[name] for name in kept})


@dataclass(frozen=True, slots=True)
class Requests:
    """What a deployment is sized for."""

    mode: str  # serve, estimate or offline
    prompt: int  # tokens of the longest
    flight: int  # requests at once
    output: int = 0  # tokens of the longest
    version_given: bool = True
    drafting: bool = False  # the deployment says that it drafts

    def facts(self) -> dict[str, Any]:
        """What conditions may name; `shortest` and `longest` of the longest prompt and the longest output."""
        ends = {"shortest": min(self.prompt, self.output), "longest": max(self.prompt, self.output)}
        return {one.name: getattr(self, one.name) for one in fields(self)} | ends


@cache
def every() -> tuple[Case, ...]:
    """All rules in order, notes as their `rows`. BadFile where one lacks a source or a value its field's type."""
    kinds = {**get_type_hints(Setup), "drafts": int, "speculative": str}
    with packaged.well_formed(FILE):
        return tuple(
            Case(
                frozen(row["when"]),
                {name: value if _is_sum(value) else typed(kinds[name], value) for name, value in row["set"].items()},
                row["source"],
                row.get("note", ""),
            )
            for row in packaged.document(FILE)
        )


def find(engine: str, version: str, setting: DeploymentFacts, requests: Requests) -> Recipe:
    """What deployments of an engine's version in a setting set for such requests."""
    facts = {**facts_of(version, setting), **requests.facts(), "engine": engine}
    settings: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for case in every():
        if case.holds(facts):
            for name, value in case.value.items():
                settings.setdefault(name, _size(value, facts) if _is_sum(value) else value)
                notes[name] = notes.get(name) or case.rows
    return Recipe(settings, notes)


def _is_sum(value: Any) -> bool:
    return isinstance(value, str) and not set(SIZES).isdisjoint(value.split())


def _size(text: str, known: Mapping[str, Any]) -> int:
    """The largest of several sums of numbers and known sizes."""
    sums = [part.split(" + ") for part in text.split(" or ")]
    return max(sum(known[term] if term in SIZES else int(term) for term in terms) for terms in sums)
