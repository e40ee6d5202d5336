"""Rules of software and of measurements as sourced data: one condition language, one order, typed values.

A rule is a list of cases; the first whose conditions hold answers. A condition names a fact (`framework`, `dtype`, ...)
and its value or a list of values; `since` and `before` bound the version, `X_from` and `X_below` a number, and `X_has`,
`X_starts`, `X_ends` look at a fact's text. Every case has a source, and its value the type that its reader declares
(`rule_values` for `stack_rules.json`, fields of `engine_parts` for the rules of an engine).

JSON and not YAML: every command reads such files, and PyYAML takes longer to import than a file to parse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import contains, ge, lt
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pipewave.errors import BadFile
from pipewave.files import packaged
from pipewave.software.rule_values import VALUES, type_of
from pipewave.software.stacks import version_of

FILE = Path(__file__).with_name("stack_rules.json")
Facts = Mapping[str, Any]
_hints = cache(get_type_hints)  # types of the fields of a class
_ENDINGS: Mapping[str, Callable[[Any, Any], bool]] = {
    "_from": ge, "_below": lt, "_has": contains, "_starts": str.startswith, "_ends": str.endswith,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One row."""

    when: Mapping[str, Any]  # conditions under which it answers
    value: Any
    source: str
    rows: str = ""  # measured, behind it

    def holds(self, facts: Facts) -> bool:
        """Whether every condition is met. KeyError for a condition on a fact that nobody gives."""
        return all(_met(name, wanted, facts) for name, wanted in self.when.items())


def _met(name: str, wanted: Any, facts: Facts) -> bool:
    if name in ("since", "before"):
        return bool(facts["version"] >= version_of(wanted)) == (name == "since")
    for ending, test in _ENDINGS.items():
        if name.endswith(ending):
            fact = facts[name.removesuffix(ending)]
            return any(test(fact, part) for part in (wanted if isinstance(wanted, tuple) else (wanted,)))
    fact = facts[name]
    return bool(fact == wanted or (isinstance(wanted, tuple) and fact in wanted))


def typed(kind: Any, value: Any) -> Any:
    """A value of JSON as its declared type: classes from objects, tuples from lists. ValueError where it is none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        found = [each for each in inner if (value is None) == (each is NoneType)]
        return typed(found[0], value)
    if kind is Any or (kind is NoneType and value is None) or (origin is Literal and value in inner):
        return value
    if origin is None and hasattr(kind, "__annotations__") and isinstance(value, Mapping):
        hints = _hints(kind)
        return kind(**{name: typed(hints[name], each) for name, each in value.items()})
    if origin is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return tuple(typed(each, one) for each, one in zip(kinds, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {name: typed(inner[1], each) for name, each in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise ValueError(f"{value!r} is no {getattr(kind, '__name__', kind)}")


@cache
def table() -> Mapping[str, tuple[Case, ...]]:
    """Every rule's cases in order. BadFile where the file is damaged, a rule has no source or a value another type."""
    return read(FILE, VALUES)


def read(file: Path, values: Mapping[str, Any] | None = None) -> Mapping[str, tuple[Case, ...]]:
    """The rules of a file of this form; other packages keep rules of their own. `values`: type of each rule's value."""
    with packaged.well_formed(file):
        return {
            name: tuple(_case(rule, case, kind_of(name, rule, values)) for case in rule["cases"])
            for name, rule in packaged.document(file).items()
        }


def kind_of(name: str, rule: Mapping[str, Any], values: Mapping[str, Any] | None) -> Any:
    """The type of a rule's value: what its file says (`null`: or nothing), or what its reader declares."""
    if "type" not in rule:
        return values[name] if values else Any
    said = type_of(rule["type"])
    return said | None if "null" in rule else said


def _case(rule: Mapping[str, Any], case: Mapping[str, Any], kind: Any) -> Case:
    source, rows = case.get("source", rule["source"]), rule["rows"]
    if not (rule["about"] and source and rows):
        raise ValueError(f"no source or rows: {case}")
    return Case(frozen(case["when"]), typed(kind, case["value"]), source, rows)


def frozen(when: Mapping[str, Any]) -> Mapping[str, Any]:
    """Conditions with the lists of JSON as tuples."""
    return {name: _tuples(wanted) for name, wanted in when.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


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
    """The answer of a rule that depends on few words or on nothing, looked up once."""
    return answer(rule, facts)
