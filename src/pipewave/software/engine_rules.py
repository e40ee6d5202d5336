"""Rules of an engine as data: what holds from a version, on a kind of GPU, for a kind of model and split.

A YAML file of rules is read from top to bottom; each rule whose condition holds sets fields, later ones override
earlier ones (of a mapping, the entries that they name), and each names its source. Conditions: `since` and `before` a
version; `NAME_from` (at least) and `NAME_below` for numbers of the setting; for anything else the value itself or a
list of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.software.engine_parts import DeploymentFacts, GroupedGemmTime, KernelRule
from pipewave.software.stacks import version_of

HERE = Path(__file__).parent
USUAL = "vllm"  # the engine of an answer where none is named
CHOICE = tuple(KernelRule.__dataclass_fields__)[2:]
FROM, BELOW = "_from", "_below"


@cache
def read(engine: str) -> Mapping[str, Any]:
    """The rules of an engine: `version` (its default), `rules` and `kernels`."""
    return dict(packaged.yaml(HERE / f"{engine}.yaml"))


def names() -> tuple[str, ...]:
    """Engines with rules, the usual one first."""
    known = sorted(path.stem for path in HERE.glob("*.yaml"))
    return tuple(sorted(known, key=lambda name: (name != USUAL, name)))


@cache
def knows(engine: str, version: str) -> bool:
    """Whether rules or rows of a version of an engine were read: of others, as little is known as of an unnamed one."""
    asked = version_of(version)
    known = [version_of(str(each)) for each in read(engine)["known_versions"]]
    return len(asked) > 1 and any(asked[: len(each)] == each[: len(asked)] for each in known)


def fields(engine: str, version: str, setting: DeploymentFacts) -> dict[str, Any]:
    """Every field that the rules set for a version of an engine in a setting."""
    found: dict[str, Any] = {}
    for rule in _holding(read(engine)["rules"], version, setting):
        found |= {name: _over(found.get(name), value) for name, value in rule["set"].items()}
    return found


def _over(earlier: Any, value: Any) -> Any:
    """What a rule sets over what earlier ones did: of a mapping, only the entries that it names."""
    return {**earlier, **value} if isinstance(earlier, Mapping) and isinstance(value, Mapping) else value


def kernels(engine: str, version: str, setting: DeploymentFacts) -> tuple[KernelRule, ...]:
    """The kernel rules that hold, first match first."""
    listed = _holding(read(engine).get("kernels", ()), version, setting)
    return tuple(
        KernelRule(family, dtype, **{name: _typed(rule[name]) for name in CHOICE if name in rule})
        for rule in listed
        for family in _list(rule["family"])
        for dtype in _list(rule.get("dtype", ""))
    )


def _typed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return GroupedGemmTime(**value)
    return tuple(value) if isinstance(value, list) else value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _holding(rules: Any, version: str, setting: DeploymentFacts) -> Iterator[Mapping[str, Any]]:
    return (rule for rule in rules if holds(rule.get("when", {}), version, setting))


def holds(when: Mapping[str, Any], version: str, setting: DeploymentFacts) -> bool:
    """Whether every condition of a rule is met."""
    return all(_meets(name, value, version, setting) for name, value in when.items())


def _meets(name: str, value: Any, version: str, setting: DeploymentFacts) -> bool:
    if name == "since":
        return version_of(version) >= version_of(value)
    if name == "before":
        return version_of(version) < version_of(value)
    return meets(setting, name, value)


def meets(fields: Any, name: str, value: Any) -> bool:
    """Whether a field of an object meets a condition of a rule."""
    if name.endswith(FROM):
        return bool(getattr(fields, name.removesuffix(FROM)) >= value)
    if name.endswith(BELOW):
        return bool(getattr(fields, name.removesuffix(BELOW)) < value)
    return getattr(fields, name) in _list(value)
