"""What is recorded of versions: how answers age, which models they read, drafts accepted, tuned block sizes shipped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipewave.calls.dtypes import SIXTEEN_BIT
from pipewave.files import packaged
from pipewave.physics.demand import Array
from pipewave.software.engine_rules import releases
from pipewave.software.stacks import framework, version, version_of

# Fitted by `python -m train.ageing --write` on versions asked from those before them.
AGEING, TUNED = (Path(__file__).with_name(name) for name in ("ageing.json", "tuned_experts.json"))
READS, ACCEPTANCE = (Path(__file__).parent / "deployments" / f"{name}.yaml" for name in ("reads", "acceptance"))
MONTH = 30.44  # days


class Age(NamedTuple):
    """How much older the rows of one version are than another version: releases after it, and months between."""

    releases: int
    months: float

    def __str__(self) -> str:
        some = "release" if self.releases == 1 else "releases"
        return f"{self.releases} {some} and {self.months:.1f} months older"

    def factor(self, net: str) -> float:
        """By how much a net's interval of a version a release away is to be widened, by the law of ageing."""
        law: Mapping[str, Any] = packaged.document(AGEING)
        rate = law["rates"].get(net, law["rates"]["other"])
        return float(min(1.0 + rate * self.months, law["most"]))


@cache
def age(answered: str, asked: str) -> Age | None:
    """How much older the stack that answers is than the one asked for; None where it is none, or nothing tells it.

    A version that no table lists counts as the last release before it: it is at least as old.
    """
    days = {version(f"{framework(asked)}-{name}"): day for name, day in releases(framework(asked))["versions"].items()}
    two = [max((one for one in days if one <= version(stack)), default=None) for stack in (answered, asked)]
    if framework(answered) != framework(asked) or two[0] is None or two[1] is None or two[0] >= two[1]:
        return None
    passed = (date.fromisoformat(days[two[1]]) - date.fromisoformat(days[two[0]])).days / MONTH
    return Age(sum(two[0] < one <= two[1] for one in days), passed)


@cache
def first_versions(engine: str) -> Mapping[str, str]:
    """The first version that is recorded to have a class for a type of model; empty of an engine without a list."""
    since = packaged.yaml(READS).get(engine, {}).get("since", {})
    return {model_type: str(version) for version, types in since.items() for model_type in types}


@cache
def unread(engine: str, version: str, model_type: str) -> str:
    """What to say of a model that a version of an engine is not recorded to have a class for; empty where it is, where
    no model is named, and of an engine without a list.
    """
    known = first_versions(engine)
    if not model_type or not known or version_of(version) >= version_of(known.get(model_type, (1 << 30,))):
        return ""
    kind, first = packaged.yaml(READS)[engine]["kind"], known.get(model_type)
    said = f"the {kind} for {model_type} is recorded from {first} on"
    return (
        f"{engine} {version} may not serve this model: {said if first else f'no {kind} is recorded for {model_type}'}"
    )


@cache
def acceptance(method: str, model_type: str = "") -> tuple[float, ...]:
    """Probability that a draft of a method of speculation is accepted, where nothing is said: of each position, the
    last one for those that follow; a model's own where it has one.
    """
    found = _accepted(method, model_type)["acceptance"]
    return tuple(float(rate) for rate in (found if isinstance(found, list) else [found]))


@cache
def acceptance_range(method: str, model_type: str = "") -> tuple[float, float]:
    """Between what the probability lies, by text and sampling, in nine of ten cases."""
    low, high = _accepted(method, model_type)["range"]
    return float(low), float(high)


def _accepted(method: str, model_type: str) -> Mapping[str, Any]:
    usual: Mapping[str, Any] = packaged.yaml(ACCEPTANCE)[method]
    return next((one for one in usual.get("models", []) if model_type in one["model_type"]), usual)


def tuned(framework: str, version: tuple[int, ...], gpu: str, dtype: str, experts: Array, width: Array) -> Array:
    """1.0 where a framework ships Triton block sizes tuned for a GPU and so many experts of a rank, so wide on a rank;
    else 0.0 [call]. Without them it takes those of a plain rule, which can be two to four times slower.

    `gpu` is its registry name. Versions between those read count as the one before. Files are named by 8-bit and
    4-bit types only: the 16-bit ones share theirs.
    """
    return np.asarray(np.isin(_number(experts, width), _layers(framework, version, gpu, dtype)), np.float64)


@cache
def _tuned() -> Mapping[str, Any]:
    """Framework → GPU → type → version that brought the files → [experts, width] of a rank."""
    return dict(packaged.document(TUNED)["files"])


@lru_cache(maxsize=1024)
def _layers(framework: str, version: tuple[int, ...], gpu: str, dtype: str) -> Array:
    """One number a layer that has a file."""
    of_gpu = _tuned().get(framework, {}).get(gpu, {})
    by_version: Mapping[str, Any] = next(
        (of_gpu[kind] for kind in (dtype, *SIXTEEN_BIT.get(dtype, ())) if kind in of_gpu), {}
    )
    found = [layer for name, layers in by_version.items() if version_of(name) <= version for layer in layers]
    return _number(*np.array(found, np.float64).reshape(-1, 2).T)


def _number(experts: Array, width: Array) -> Array:
    return np.asarray(experts * 2.0**24 + width)
