"""Rules of software and of measurements as sourced data: what a stack of some version does on some GPU.

`stack_rules.json` holds one entry a rule: what it asks, where the answer comes from, the rows behind it, and its cases.
The first case whose conditions hold answers. A condition names a fact (`framework`, `dtype`, ...) and its value, or a
list of values; `since` and `before` bound the version, and `X_has`, `X_starts`, `X_ends` look at a fact's text.

JSON and not YAML: every command reads the file, and PyYAML takes longer to import than the file to parse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile
from pipewave.files import packaged

FILE = Path(__file__).with_name("stack_rules.json")
Facts = Mapping[str, Any]
_TEXT: Mapping[str, Callable[[str, str], bool]] = {
    "_has": lambda fact, part: part in fact,
    "_starts": lambda fact, part: fact.startswith(part),
    "_ends": lambda fact, part: fact.endswith(part),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One row: the conditions under which it answers, the answer, and its source."""

    when: Mapping[str, Any]
    value: Any
    source: str
    rows: str

    def holds(self, facts: Facts) -> bool:
        """Whether every condition is met. KeyError for a condition on a fact that nobody gives."""
        return all(_met(name, wanted, facts) for name, wanted in self.when.items())


def _met(name: str, wanted: Any, facts: Facts) -> bool:
    if name == "since":
        return bool(facts["version"] >= wanted)
    if name == "before":
        return bool(facts["version"] < wanted)
    for ending, test in _TEXT.items():
        if name.endswith(ending):
            fact = facts[name.removesuffix(ending)]
            return any(test(fact, part) for part in (wanted if isinstance(wanted, tuple) else (wanted,)))
    fact = facts[name]
    return bool(fact == wanted or (isinstance(wanted, tuple) and fact in wanted))


@cache
def table() -> Mapping[str, tuple[Case, ...]]:
    """Every rule's cases in order. BadFile where the file is damaged or a rule has no source."""
    return read(FILE)


def read(file: Path) -> Mapping[str, tuple[Case, ...]]:
    """The rules of a file of this form; other rooms keep rules of their own."""
    try:
        found = packaged.document(file)
        return {name: tuple(_case(rule, case) for case in rule["cases"]) for name, rule in found.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{file.name}: cannot be read ({error!r}); reinstall pipewave", field="rules") from error


def _case(rule: Mapping[str, Any], case: Mapping[str, Any]) -> Case:
    source, rows = case.get("source", rule["source"]), rule["rows"]
    if not (rule["asks"] and source and rows):
        raise ValueError(f"no source or rows: {case}")
    when = {name: _frozen(wanted) for name, wanted in case["when"].items()}
    return Case(when, _frozen(case["value"]), source, rows)


def _frozen(value: Any) -> Any:
    """Lists of JSON as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def answer(rule: str, facts: Facts) -> Any:
    """What the first case that holds says. BadFile where none does."""
    return first(table().get(rule, ()), facts, rule)


def first(cases: Sequence[Case], facts: Facts, rule: str) -> Any:
    """The same of the cases of a rule. BadFile where none holds."""
    for case in cases:
        if case.holds(facts):
            return case.value
    raise BadFile(f"{FILE.name}: no case of {rule!r} holds; reinstall pipewave", field="rules")


@lru_cache(maxsize=4096)
def constant(rule: str, **facts: Any) -> Any:
    """The answer of a rule that hangs on few words or on nothing, looked up once."""
    return answer(rule, facts)
