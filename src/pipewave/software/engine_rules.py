"""Rules of a serving engine by version: defaults and kernels, from `ENGINE.json`.

Of the rules that hold and set a field, the first counts (of `states` and `reserve`, part by part). Conditions are those
of `rules`, over `DeploymentFacts` and the version; values have the types of `engine_parts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, get_type_hints

from pipewave.files import packaged
from pipewave.software import stacks
from pipewave.software.engine_parts import PARTS, DeploymentFacts, KernelRule, StateCheckpoints, StaticReserve
from pipewave.software.rules import Case, Facts, frozen, typed

HERE = Path(__file__).parent
NAMES = ("vllm", "sglang", "trtllm")  # engines with rules; the first is that of an answer where none is named
NESTED: Mapping[str, type[Any]] = {"states": StateCheckpoints, "reserve": StaticReserve}


@cache
def read(engine: str) -> Mapping[str, Any]:
    """The file of an engine: `version` (its default), `known_versions`, `vendors`, `rules` and `kernels`; behind its
    own, the versions and rules that `python -m facts` read from its releases.
    """
    own, found = packaged.document(HERE / f"{engine}.json"), releases(engine)
    versions = dict.fromkeys([*own["known_versions"], *found["versions"]])
    return {**own, "known_versions": sorted(versions, key=stacks.version_of), "rules": [*own["rules"], *found["rules"]]}


def releases(engine: str) -> Mapping[str, Any]:
    """Releases of an engine whose source was read: `versions` with their days, oldest first, and `rules`."""
    return dict(packaged.shared(HERE / "releases.json").get(engine, {"versions": {}, "rules": []}))


@cache
def knows(engine: str, version: str) -> bool:
    """Whether rules or rows of a version of an engine were read: of others, as little is known as of an unnamed one."""
    asked = stacks.version_of(version)
    known = map(stacks.version_of, read(engine)["known_versions"])
    return len(asked) > 1 and any(asked[: len(each)] == each[: len(asked)] for each in known)


def facts_of(version: str, setting: DeploymentFacts) -> Facts:
    """What conditions of an engine's rules may name; a release comes after all of its candidates."""
    return {name: getattr(setting, name) for name in setting.__slots__} | {"version": stacks.version(version)}


@cache
def _types() -> Mapping[str, Any]:
    """Type of each field that a rule may set, `states.places` and the like among them."""
    flat = {name: kind for part in PARTS.values() for name, kind in get_type_hints(part).items()}
    parts = {f"{name}.{each}": kind for name, part in NESTED.items() for each, kind in get_type_hints(part).items()}
    return {name: kind for name, kind in flat.items() if name not in NESTED} | parts | {"stack": str}


@cache
def _cases(engine: str, part: str) -> tuple[Case, ...]:
    """The `rules` of an engine in order, or its `kernels` one by one. BadFile without a source or of another type."""
    with packaged.well_formed(Path(f"{engine}.json")):
        return tuple(case for row in read(engine)[part] for case in _cases_of(row, part))


def _cases_of(row: Mapping[str, Any], part: str) -> Iterator[Case]:
    """One case of a row of `rules`, or one a family and type of a row of `kernels`."""
    when, source = frozen(row["when"]), row["source"]
    if not source:
        raise ValueError(f"no source: {row}")
    if part == "rules":
        yield Case(when, {name: typed(_types()[name], each) for name, each in row["set"].items()}, source)
        return
    for family, dtype in product(row["family"], row["dtype"]):
        yield Case(when, typed(KernelRule, {"family": family, "dtype": dtype, **row["set"]}), source)


def fields(engine: str, version: str, setting: DeploymentFacts) -> dict[str, Any]:
    """Every field that the rules set for a version of an engine in a setting."""
    facts, found = facts_of(version, setting), dict[str, Any]()
    for case in _cases(engine, "rules"):
        if case.holds(facts):
            found = {**case.value, **found}
    flat = {name: value for name, value in found.items() if "." not in name}
    nested: dict[str, dict[str, Any]] = {}
    for name in found.keys() - flat.keys():
        part, _, inner = name.partition(".")
        nested.setdefault(part, {})[inner] = found[name]
    return flat | {part: NESTED[part](**values) for part, values in nested.items()}


def kernels(engine: str, version: str, setting: DeploymentFacts) -> tuple[KernelRule, ...]:
    """The kernel rules that hold, in order."""
    facts = facts_of(version, setting)
    return tuple(case.value for case in _cases(engine, "kernels") if case.holds(facts))
